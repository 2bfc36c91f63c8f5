"""The end of `phalanx run --workers`: whatever brings it about, nothing that it started is left."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fleet.launching import TWO, finish, launches, wait_gone

DEAF = "import signal\nfor each in (2, 15): signal.signal(each, signal.SIG_IGN)\n"
# One write: several processes of one worker share its pipe, and pieces of print would mix.
WAIT = "os.write(1, b'pid %d\\n' % os.getpid())\nwhile True: signal.pause()\n"
# A worker with a child in its own group, one in another session, and one whose parent is gone.
GRANDCHILDREN = f"""
child = {("import os" + chr(10) + DEAF + WAIT)!r}
subprocess.Popen([sys.executable, "-S", "-c", child])
subprocess.Popen([sys.executable, "-S", "-c", child], start_new_session=True)
middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]], start_new_session=True)"
subprocess.run([sys.executable, "-S", "-c", middle, child])
"""


@pytest.fixture
def launch(tmp_path):
    yield from launches(tmp_path)


@pytest.fixture
def run(launch):
    return lambda *arguments, seconds=60, **more: finish(launch(*arguments, **more), seconds)


def pids(launcher, count):
    """The numbers that so many processes print when they are ready."""
    lines = [launcher.stdout.readline().decode() for _ in range(count)]
    found = [int(line.removeprefix("[worker 1] ").split()[1]) for line in lines if "pid" in line]
    assert len(set(found)) == count, lines
    return found


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("signum", "code"), SIGNALS)
def test_a_signal_ends_workers_that_listen_to_it(launch, signum, code):
    polite = "signal.signal(15, lambda *_: (print('goodbye of', index, flush=True), os._exit(0)))\n"
    launcher = launch(polite + WAIT, *TWO, "--grace", "9")
    family = pids(launcher, 2)
    launcher.send_signal(signum)
    left_with, out, err = finish(launcher, 10)
    assert left_with == code
    assert sorted(out.splitlines()) == ["[worker 1] goodbye of 1", "goodbye of 0"]
    assert err.splitlines()[-1] == f"phalanx: {signum.name}: 2 workers asked to end, killed after 9 s"
    assert all(wait_gone(pid, 0) for pid in family)


@pytest.mark.parametrize(("signum", "code"), SIGNALS[:2])
def test_workers_and_grandchildren_that_do_not_listen_are_killed_after_the_grace_time(launch, signum, code):
    launcher = launch(DEAF + GRANDCHILDREN + WAIT, *TWO, "--grace", "0.3")
    family = pids(launcher, 8)
    launcher.send_signal(signum)
    left_with, _, err = finish(launcher, 10)
    assert left_with == code
    for index in (0, 1):
        assert f"worker {index} did not end on SIGTERM: SIGKILL" in err
    assert all(wait_gone(pid, 0) for pid in family)


def test_with_no_option_everything_is_gone_in_less_than_ten_seconds(launch):
    launcher = launch(DEAF + GRANDCHILDREN + WAIT, *TWO)
    family = pids(launcher, 8)
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher, 10)[0] == 130
    assert all(wait_gone(pid, 0) for pid in family)


def test_a_second_signal_does_not_wait_for_the_grace_time(launch):
    launcher = launch(DEAF + WAIT, *TWO, "--grace", "3600")
    family = pids(launcher, 2)
    launcher.send_signal(signal.SIGINT)
    assert b"CPU replica" in launcher.stderr.readline() and b"asked to end" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGINT)  # an echo: `timeout` signals its child, then its group
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(timeout=0.5)
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher, 10)[0] == 130
    assert all(wait_gone(pid, 0) for pid in family)


def test_a_signal_that_was_ignored_before_stays_ignored(launch):
    """As `nohup` does with SIGHUP."""
    launcher = launch(WAIT, *TWO, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    pids(launcher, 2)
    launcher.send_signal(signal.SIGHUP)
    launcher.send_signal(signal.SIGTERM)
    assert finish(launcher, 10)[0] == 143


def test_a_stopped_worker_is_ended(launch):
    launcher = launch(WAIT, *TWO, "--grace", "0.3")
    family = pids(launcher, 2)
    os.kill(family[1], signal.SIGSTOP)
    launcher.send_signal(signal.SIGTERM)
    assert finish(launcher, 10)[0] == 143
    assert all(wait_gone(pid, 0) for pid in family)


def test_a_failure_ends_the_others_and_what_they_started(launch):
    code = DEAF + GRANDCHILDREN + "os.write(1, b'pid %d\\n' % os.getpid())\nif index: sys.exit(3)\n" + WAIT
    launcher = launch(code, *TWO, "--grace", "0.3")
    code, _, err = finish(launcher, 10)
    assert code == 3
    assert "worker 1 left with code 3; it wrote nothing to standard error" in err


def test_what_a_finished_run_left_running_is_ended_and_named(launch):
    launcher = launch(GRANDCHILDREN, "--workers", "1", "--grace", "0.3")
    code, _, err = finish(launcher, 10)
    assert code == 0
    assert "phalanx: ending what the workers left running: process " in err


def test_processes_that_the_launcher_had_before_are_left_alone(launch, tmp_path):
    """A shell that becomes the launcher hands it the children that it had."""
    become = (
        "import os, subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); "
        "os.execv(sys.executable, [sys.executable, '-S', '-m', 'phalanx', 'run', '--workers', '2', 'job.py'])"
    )
    launcher = launch("", python=("-c", become))
    pid = int(launcher.stdout.readline())
    try:
        assert launcher.wait(timeout=20) == 0
        assert not wait_gone(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        assert wait_gone(pid, 5)


# The launcher itself is gone


def test_a_killed_launcher_takes_its_workers_and_their_children_along(launch):
    child = f"child = {('import os' + chr(10) + DEAF + WAIT)!r}\nsubprocess.Popen([sys.executable, '-S', '-c', child])\n"
    launcher = launch(DEAF + child + WAIT, *TWO)
    family = pids(launcher, 4)
    launcher.kill()
    assert all(wait_gone(pid, 5) for pid in family)


def test_a_killed_guard_changes_nothing_for_the_workers(launch, tmp_path):
    launcher = launch(WAIT, *TWO)
    family = pids(launcher, 2)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    (guard,) = {int(pid) for pid in children} - set(family)
    os.kill(guard, signal.SIGKILL)
    launcher.kill()
    assert all(wait_gone(pid, 5) for pid in family)


# Its output


def test_nobody_reads_the_output_any_more(launch):
    launcher = launch("import itertools\nfor i in itertools.count(): print(i)\n", *TWO)
    launcher.stdout.readline()
    launcher.stdout.close()
    launcher.stdout = None
    _, err = launcher.communicate(timeout=20)
    assert launcher.returncode == 141
    assert b"the output can no more be written: 2 workers asked to end" in err


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
        *TWO,
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
        *TWO,
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
