"""`phalanx manifest`: the command line."""

import pytest
import yaml

from phalanx.cli.main import main


def said(capsys, *arguments):
    main(["manifest", *arguments])
    return capsys.readouterr().out


def test_what_stands_behind_the_script_is_the_scripts(capsys):
    text = said(capsys, "slurm", "--workers", "3", "train.py", "--workers", "7", "--help")
    assert "#SBATCH --nodes=3" in text and text.endswith("phalanx run train.py --workers 7 --help\n")


def test_a_module_runs_as_with_python(capsys):
    tree = yaml.safe_load(said(capsys, "kubernetes", "--image", "a:1", "-m", "package.train", "--x"))
    pod = tree["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["phalanx", "run", "-m", "package.train", "--x"]


def test_a_script_whose_name_starts_with_a_dash_is_no_option(capsys):
    assert said(capsys, "slurm", "--", "-odd.py").endswith("phalanx run -- -odd.py\n")


def test_help_teaches(capsys):
    text = said(capsys)
    for word in ("kubernetes", "slurm", "--max-restarts K", "MultiWorkerMirroredStrategy", "examples:"):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        (["nomad", "train.py"], "invalid choice: 'nomad'"),
        (["slurm"], "no script"),
        (["slurm", "--workers", "0", "train.py"], "--workers 0"),
        (["slurm", "--workers", "99999", "train.py"], "--workers 99999"),
        (["slurm", "--port", "70000", "train.py"], "--port 70000"),
        (["slurm", "--name", "$(id)", "train.py"], "--name '$(id)'"),
        (["slurm", "--bogus", "train.py"], "--bogus"),
        (["kubernetes", "train.py"], "no --image"),
    ],
)
def test_bad_input_is_three_parts_and_exit_code_2(arguments, received, capsys):
    with pytest.raises(SystemExit) as left:
        main(["manifest", *arguments])
    out, err = capsys.readouterr()
    rule, second, third = err.splitlines()
    assert left.value.code == 2 and not out
    assert received in second and third.startswith("  next:     phalanx manifest")
