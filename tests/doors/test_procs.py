"""The process door: naming the script, becoming another program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.host.procs import options_of_python

ROOT = Path(__file__).resolve().parents[2]
SAY = "from phalanx.host import procs; print(procs.current_script())"


def python(*arguments, cwd, text=None):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train it.py").write_text(SAY)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(SAY)
    (tmp_path / "package" / "__main__.py").write_text(SAY)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train it.py", "--name", "a b"], "'train it.py' --name 'a b'"),
        (["-m", "package.train", "-x"], "-m package.train -x"),
        (["-m", "package"], "-m package"),
        (["package"], "package"),
        (["-c", SAY], "None"),
    ],
)
def test_the_running_script_is_named_as_it_would_be_pasted(folder, arguments, said):
    assert python(*arguments, cwd=folder) == said


def test_a_prompt_runs_no_script(folder):
    assert python("-", cwd=folder, text=SAY) == "None"


def test_becoming_python_replaces_process_environment_and_output(folder):
    child = "import os, sys; print(os.environ['ONLY'], sys.argv[1:])"
    code = (
        "from phalanx.host import procs\n"
        "print('before')\n"
        f"procs.become_python(['-c', {child!r}, '$HOME'], {{'ONLY': 'this'}})\n"
        "print('never')"
    )
    assert python("-c", code, cwd=folder).splitlines() == ["before", "this ['$HOME']"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("python -u a.py -v", "-u"),
        ("python -um phalanx run -u", "-u"),
        ("python -mphalanx run", ""),
        ("python -Werror -W ignore -bb -m phalanx", "-Werror -W ignore -bb"),
        ("python -- a.py", ""),
        ("python -c code -u", ""),
        ("python", ""),
    ],
)
def test_options_of_python_end_where_the_program_begins(command, options):
    assert options_of_python(command.split()) == options.split()
