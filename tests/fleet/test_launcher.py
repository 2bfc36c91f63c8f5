"""`phalanx run --workers`: what the workers see, what they say, what the command leaves with."""

import json
import os
import signal

import pytest

from tests.fleet.launching import COMMAND, TWO, finish, launches


@pytest.fixture
def launch(tmp_path):
    yield from launches(tmp_path)


@pytest.fixture
def run(launch):
    return lambda *arguments, **more: finish(launch(*arguments, **more))


def lines_of(text):
    """Lines of the chief and of worker 1, each without the name."""
    name = "[worker 1] "
    lines = text.splitlines()
    other = [line.removeprefix(name) for line in lines if line.startswith(name)]
    return [line for line in lines if not line.startswith(name)], other


# What workers see


def test_each_worker_has_its_place_its_replicas_and_a_loopback_address(run):
    report = "print(json.dumps([config, os.environ['JAX_NUM_CPU_DEVICES']]))"
    code, out, err = run(report, *TWO, "--replicas", "3")
    assert code == 0 and err.startswith("phalanx: 2 workers x 3 CPU replicas ("), err
    (chief,), (other,) = ([json.loads(line) for line in lines] for lines in lines_of(out))
    assert [each[0]["task"] for each in (chief, other)] == [
        {"type": "worker", "index": index} for index in (0, 1)
    ]
    assert chief[1] == other[1] == "3"
    assert chief[0]["cluster"] == other[0]["cluster"]
    addresses = chief[0]["cluster"]["worker"]
    assert len(set(addresses)) == 2 and all(each.startswith("127.0.0.1:") for each in addresses)


def test_one_worker_is_a_cluster_of_one_and_prints_as_it_is(run):
    code, out, _ = run("print(len(config['cluster']['worker']), index)", "--workers", "1")
    assert (code, out) == (0, "1 0\n")


def test_without_workers_the_script_has_no_cluster(run, tmp_path):
    (tmp_path / "alone.py").write_text("import os; print(os.environ.get('TF_CONFIG'))")
    assert run("", python=(*COMMAND, "alone.py"))[:2] == (0, "None\n")


def test_hostile_arguments_and_values_reach_the_script_unchanged_and_no_shell(run, tmp_path):
    hostile = [
        "--workers",
        "7",
        "--",
        "$(touch no)",
        "`touch no`",
        "; touch no",
        "a'b\"c",
        "two\nlines",
        "",
        "*",
    ]
    value = "'; $(touch no)\n`touch no`\" é" + "x" * 100_000  # a system allows 131,071 bytes
    report = "print(json.dumps([sys.argv[1:], os.environ['HOSTILE']]))"
    variables = {"HOSTILE": value, "TF_CONFIG": "$(touch no)"}
    code, out, err = run(report, *TWO, arguments=hostile, variables=variables)
    assert code == 0, err
    assert [[json.loads(line) for line in lines] for lines in lines_of(out)] == [[[hostile, value]]] * 2
    assert os.listdir(tmp_path) == ["job.py"]


def test_options_of_python_and_modules_reach_every_worker(run, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print(sys.flags.dev_mode, sys.argv[1:])")
    _, out, _ = run("", python=("-X", "dev", *COMMAND, *TWO, "-m", "package.train", "-x"))
    assert lines_of(out) == (["True ['-x', 'job.py']"],) * 2


def test_workers_have_no_input(run):
    assert lines_of(run("print(repr(sys.stdin.read()))", *TWO)[1]) == (["''"], ["''"])


def test_the_launcher_loads_neither_jax_nor_keras(run):
    code, _, err = run("", *TWO, python=("-X", "importtime", *COMMAND))
    loaded = {line.rsplit("|")[-1].strip() for line in err.splitlines()}
    assert code == 0 and "phalanx.launch.supervise" in loaded
    assert not {name.split(".")[0] for name in loaded} & {"jax", "jaxlib", "keras", "numpy"}


def test_a_worker_that_the_system_does_not_start_ends_those_that_it_did(run, tmp_path):
    start = """
from phalanx.host import env
from phalanx.launch.plan import WorkersPlan
from phalanx.launch.supervise import Settings, supervise
changes = [{}, {"TOO_LONG": "x" * 200_000}]
supervise(["job.py"], WorkersPlan("", changes), env.snapshot(), Settings())
"""
    code, _, err = run("signal.pause()", python=("-S", "-c", start))
    assert code == 1 and "SettingError" in err and "  received: [Errno 7] Argument list too long" in err


# What they say

BAR = r"""
for at in (1, 2, 3):
    back = "\b" * 30 if at > 1 else ""
    sys.stdout.write(back + "\r" + f"\x1b[1m{at}/3\x1b[0m \x1b[32m" + "━" * at + "\x1b[0m\x1b[37m" + "━" * (3 - at)
        + f"\x1b[0m \x1b[1m{3 - at}s\x1b[0m 100ms/step - accuracy: 0.500{at} - loss: 1.200{at}")
    sys.stdout.flush()
    if at == 2:
        print("within", index)
print()
print("after", index)
print("warning of", index, file=sys.stderr)
"""


def test_one_bar_and_the_lines_of_all(run):
    _, out, err = run(BAR, *TWO)
    assert out.count("3/3") == out.count("1/3") == 1, "one bar, all its drawings"
    lines = out.split("\n")
    assert [line for line in lines if line.startswith("[worker 1]")] == [
        "[worker 1] within 1",
        "[worker 1] after 1",
    ]
    assert "after 0" in lines
    assert sorted(err.splitlines()[-2:]) == ["[worker 1] warning of 1", "warning of 0"]


def test_the_chiefs_bytes_pass_at_once_and_as_they_are(launch, tmp_path):
    os.mkfifo(tmp_path / "gate")
    job = "os.write(1, b'\\xff half a line')\nopen('gate').read()\nos.write(1, b' whole')\n"
    launcher = launch(job, "--workers", "1")
    assert os.read(launcher.stdout.fileno(), 100) == b"\xff half a line"
    (tmp_path / "gate").write_text("go")
    assert finish(launcher)[:2] == (0, " whole")


def test_all_of_a_large_output_arrives(run):
    _, out, _ = run("for i in range(20000): print(index, 'x' * 100, i)", *TWO)
    for index, lines in enumerate(lines_of(out)):
        assert [line for line in lines if line] == [f"{index} {'x' * 100} {i}" for i in range(20000)]


def test_output_without_an_end_of_line_is_not_lost(run):
    _, out, _ = run("sys.stdout.write(f'end of {index}')", *TWO)
    assert set(filter(None, out.split("\n"))) == {"end of 0", "[worker 1] end of 1"}


# What they leave with


@pytest.mark.parametrize(("worker", "wanted"), [(0, 3), (1, 1), (1, 255)])
def test_the_exit_code_is_the_failing_workers_own(run, worker, wanted):
    code, _, err = run(f"sys.exit({wanted} if index == {worker} else 0)", *TWO)
    assert code == wanted
    assert f"phalanx: worker {worker} left with code {code}; it wrote nothing to standard error" in err


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_is_128_more_and_named(run, signum):
    code, _, err = run(f"os.kill(os.getpid(), {int(signum)}) if index else signal.pause()", *TWO)
    assert code == 128 + signum
    assert f"worker 1 was ended by {signum.name} (code {code})" in err


def test_the_first_failure_wins_and_its_last_lines_come_last(run, tmp_path):
    job = """
def leave(*_):
    print("noise of the one that was ended", file=sys.stderr)
    os._exit(7)
signal.signal(signal.SIGTERM, leave)
if index == 2:
    gate = os.open("gate", os.O_RDWR)
    for each in range(2):
        os.read(gate, 1)  # until the others are ready
    raise RuntimeError("the cause")
open("gate", "wb").write(b"x")
signal.pause()
"""
    os.mkfifo(tmp_path / "gate")
    code, _, err = run(job, "--workers", "3")
    assert code == 1
    assert "noise of the one" in err
    assert "worker 2 left with code 1; the last lines of its standard error:\nTraceback" in err
    assert err.splitlines()[-1] == "RuntimeError: the cause"


def test_a_run_waits_for_its_slowest_worker(run, tmp_path):
    job = """
open("gate", "r" if index == 0 else "w").close()
if index == 0:
    signal.signal(signal.SIGCHLD, lambda *_: None)
    other = int(open("other").read())
    number = os.pidfd_open(other)
    import select
    select.select([number], [], [])
    print("slow one is done")
"""
    os.mkfifo(tmp_path / "gate")
    code, out, _ = run("if index: open('other', 'w').write(str(os.getpid()))\n" + job, *TWO)
    assert (code, out) == (0, "slow one is done\n")
