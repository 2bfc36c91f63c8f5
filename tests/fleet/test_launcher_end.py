"""The end of `phalanx run --workers`: whatever brings it about, nothing that it started is left."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START = (
    "import json, os, signal, subprocess, sys\nindex = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
)
DEAF = "import signal\nfor each in (2, 15): signal.signal(each, signal.SIG_IGN)\n"
WAIT = "print('pid', os.getpid(), flush=True)\nwhile True: signal.pause()\n"
# A worker with a child in its own group, one in another session, and one whose parent is gone.
GRANDCHILDREN = f"""
child = {("import os" + chr(10) + DEAF + WAIT)!r}
subprocess.Popen([sys.executable, "-c", child])
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
subprocess.run([sys.executable, "-c", middle, child])
"""


def wait_gone(pid, seconds):
    """Wait for the end of any process, without looking again and again."""
    try:
        number = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([number], [], [], seconds)[0])
    finally:
        os.close(number)


def marked(value):
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if value.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def launch(tmp_path):
    """Start a job under the launcher; at the end nothing of it may be left."""
    mark = uuid.uuid4().hex
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environ |= {"PYTHONPATH": str(ROOT), "MARK": mark}
    started = []

    def launch(code, *options, **more):
        (tmp_path / "job.py").write_text(START + code)
        streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) | more
        command = [sys.executable, "-m", "phalanx", "run", *options, "job.py"]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environ, **streams))
        return started[-1]

    yield launch
    for launcher in started:
        launcher.kill()
        launcher.wait()
        for stream in (launcher.stdout, launcher.stderr):
            if stream is not None:
                stream.close()
    left = [pid for pid in marked(mark) if not wait_gone(pid, 5)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left: {left}"


def pids(launcher, count):
    """The numbers that so many processes print when they are ready."""
    lines = [launcher.stdout.readline().decode() for _ in range(count)]
    found = [int(line.removeprefix("[worker 1] ").split()[1]) for line in lines if "pid" in line]
    assert len(set(found)) == count, lines
    return found


def finish(launcher, seconds=10):
    out, err = launcher.communicate(timeout=seconds)
    return out.decode(), err.decode()


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("signum", "code"), SIGNALS)
def test_a_signal_ends_workers_that_listen_to_it(launch, signum, code):
    polite = "signal.signal(15, lambda *_: (print('goodbye of', index, flush=True), os._exit(0)))\n"
    launcher = launch(polite + WAIT, "--workers", "2", "--grace", "9")
    family = pids(launcher, 2)
    launcher.send_signal(signum)
    out, err = finish(launcher)
    assert launcher.returncode == code
    assert sorted(out.splitlines()) == ["[worker 1] goodbye of 1", "goodbye of 0"]
    assert err.splitlines()[-1] == f"phalanx: {signum.name}: 2 workers asked to end, killed after 9 s"
    assert all(wait_gone(pid, 0) for pid in family)


@pytest.mark.parametrize(("signum", "code"), SIGNALS[:2])
def test_workers_and_grandchildren_that_do_not_listen_are_killed_after_the_grace_time(launch, signum, code):
    launcher = launch(DEAF + GRANDCHILDREN + WAIT, "--workers", "2", "--grace", "0.3")
    family = pids(launcher, 8)
    launcher.send_signal(signum)
    _, err = finish(launcher)
    assert launcher.returncode == code
    for index in (0, 1):
        assert f"worker {index} did not end on SIGTERM: SIGKILL" in err
    assert all(wait_gone(pid, 0) for pid in family)


def test_with_no_option_everything_is_gone_in_less_than_ten_seconds(launch):
    launcher = launch(DEAF + GRANDCHILDREN + WAIT, "--workers", "2")
    family = pids(launcher, 8)
    launcher.send_signal(signal.SIGINT)
    finish(launcher, seconds=10)
    assert launcher.returncode == 130
    assert all(wait_gone(pid, 0) for pid in family)


def test_a_second_signal_does_not_wait_for_the_grace_time(launch):
    launcher = launch(DEAF + WAIT, "--workers", "2", "--grace", "3600")
    family = pids(launcher, 2)
    launcher.send_signal(signal.SIGINT)
    assert b"CPU replica" in launcher.stderr.readline() and b"asked to end" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGINT)
    finish(launcher)
    assert launcher.returncode == 130
    assert all(wait_gone(pid, 0) for pid in family)


def test_a_stopped_worker_is_ended(launch):
    launcher = launch(WAIT, "--workers", "2", "--grace", "0.3")
    family = pids(launcher, 2)
    os.kill(family[1], signal.SIGSTOP)
    launcher.send_signal(signal.SIGTERM)
    finish(launcher)
    assert launcher.returncode == 143
    assert all(wait_gone(pid, 0) for pid in family)


def test_a_failure_ends_the_others_and_what_they_started(launch):
    code = DEAF + GRANDCHILDREN + "print('pid', os.getpid(), flush=True)\nif index: sys.exit(3)\n" + WAIT
    launcher = launch(code, "--workers", "2", "--grace", "0.3")
    _, err = finish(launcher)
    assert launcher.returncode == 3
    assert "worker 1 left with code 3; it wrote nothing to standard error" in err


def test_what_a_finished_run_left_running_is_ended_and_named(launch):
    launcher = launch(GRANDCHILDREN if sys.platform == "linux" else "", "--workers", "1", "--grace", "0.3")
    _, err = finish(launcher)
    assert launcher.returncode == 0
    assert "phalanx: ending what the workers left running: process " in err


def test_processes_that_the_launcher_had_before_are_left_alone(launch, tmp_path):
    """A shell that becomes the launcher hands it the children that it had."""
    mine = f"{sys.executable} -c 'import time; time.sleep(60)'"
    script = tmp_path / "start.sh"
    script.write_text(f"{mine} & echo pid $! >&2\nexec {sys.executable} -m phalanx run --workers 2 job.py\n")
    (tmp_path / "job.py").write_text("")
    with subprocess.Popen(
        ["sh", str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as launcher:
        pid = int(launcher.stderr.readline().split()[1])
        try:
            assert launcher.wait(timeout=20) == 0
            assert not wait_gone(pid, 0)
        finally:
            os.kill(pid, signal.SIGKILL)
            assert wait_gone(pid, 5)


# The launcher itself is gone


def test_a_killed_launcher_takes_its_workers_and_their_children_along(launch):
    child = f"child = {('import os' + chr(10) + DEAF + WAIT)!r}\nsubprocess.Popen([sys.executable, '-c', child])\n"
    launcher = launch(DEAF + child + WAIT, "--workers", "2")
    family = pids(launcher, 4)
    launcher.kill()
    assert all(wait_gone(pid, 5) for pid in family)


def test_a_killed_guard_changes_nothing_for_the_workers(launch, tmp_path):
    launcher = launch(WAIT, "--workers", "2")
    family = pids(launcher, 2)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    (guard,) = {int(pid) for pid in children} - set(family)
    os.kill(guard, signal.SIGKILL)
    launcher.kill()
    assert all(wait_gone(pid, 5) for pid in family)


# Its output


def test_nobody_reads_the_output_any_more(launch):
    launcher = launch("import itertools\nfor i in itertools.count(): print(i)\n", "--workers", "2")
    launcher.stdout.readline()
    launcher.stdout.close()
    launcher.stdout = None
    _, err = launcher.communicate(timeout=20)
    assert launcher.returncode == 141
    assert b"nobody reads the output: 2 workers asked to end" in err


def test_a_reader_that_stands_still_does_not_keep_a_signal_waiting(launch):
    launcher = launch(
        "import itertools\nfor i in itertools.count(): print('x' * 1000, i)\n", "--workers", "2"
    )
    launcher.stdout.read(100_000)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=10) == 130  # nobody has read any further


def test_without_standard_streams_it_works(launch, tmp_path):
    launcher = launch(
        f"open({str(tmp_path)!r} + f'/done{{index}}', 'w')\nprint(1)\nprint(2, file=sys.stderr)\n",
        "--workers",
        "2",
        preexec_fn=lambda: os.closerange(0, 3),
    )
    assert launcher.wait(timeout=20) == 0
    assert {"done0", "done1"} <= set(os.listdir(tmp_path))


def test_control_c_on_a_terminal_reaches_workers_through_the_launcher_only(launch):
    """On a real terminal; its two streams are one, so no line lands inside another."""
    master, terminal = os.openpty()
    code = (
        "signal.signal(2, lambda *_: print('interrupted', flush=True))\n"
        "print('tty', os.getsid(0) == os.getpid(), flush=True)\n" + WAIT
    )

    def own_terminal():
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    launcher = launch(
        code,
        "--workers",
        "2",
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(terminal)
    text = b""
    try:
        while text.count(b"pid") < 2:
            text += os.read(master, 1000)
        os.write(master, b"\x03")
        with contextlib.suppress(OSError):  # the terminal's end
            while data := os.read(master, 1000):
                text += data
        assert launcher.wait(timeout=10) == 130
    finally:
        os.close(master)
    assert b"SIGINT: 2 workers asked to end" in text
    assert b"interrupted" not in text
    lines = text.decode().replace("^C", "").split("\r\n")
    assert sorted(line for line in lines if "tty" in line) == ["[worker 1] tty True", "tty True"]
