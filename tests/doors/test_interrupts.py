"""SIGTERM as news: noted once, passed on where nobody acts on it, and everything put back."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phalanx.host.interrupts import Notice

ROOT = Path(__file__).resolve().parents[2]
TERM = signal.SIGTERM


@pytest.fixture(autouse=True)
def put_back():
    before = signal.getsignal(TERM)
    yield
    signal.signal(TERM, before)


def test_the_first_signal_is_noted_and_the_next_ones_change_nothing():
    with Notice() as notice:
        assert notice.seen() is None
        for _ in range(3):
            signal.raise_signal(TERM)
            assert notice.seen() == "SIGTERM"
        notice.forget()
    assert signal.getsignal(TERM) is signal.SIG_DFL


def test_control_c_works_meanwhile():
    with pytest.raises(KeyboardInterrupt), Notice():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(TERM) is signal.SIG_DFL


def test_a_users_handler_is_called_once_and_put_back():
    calls = []

    def own(number, frame):
        calls.append(number)

    signal.signal(TERM, own)
    with Notice() as notice:
        signal.raise_signal(TERM)
        signal.raise_signal(TERM)
        assert notice.seen() == "SIGTERM" and calls == [TERM]
    assert signal.getsignal(TERM) is own and calls == [TERM]


def test_a_users_handler_that_raises_ends_the_training_as_before():
    def own(number, frame):
        raise RuntimeError("mine")

    signal.signal(TERM, own)
    with pytest.raises(RuntimeError, match="mine"), Notice():
        signal.raise_signal(TERM)
    assert signal.getsignal(TERM) is own


def test_what_is_ignored_stays_ignored():
    signal.signal(TERM, signal.SIG_IGN)
    with Notice() as notice:
        signal.raise_signal(TERM)
        assert notice.seen() is None
    assert signal.getsignal(TERM) is signal.SIG_IGN


def test_in_another_thread_nothing_is_caught():
    found = []

    def work():
        with Notice() as notice:
            found.append((notice.seen(), signal.getsignal(TERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert found == [(None, signal.SIG_DFL)]


def ended(code, *signals):
    """How a process ends that gets a signal, and then a byte to read, each time that it prints a line."""
    with subprocess.Popen(
        [sys.executable, "-c", "import os, signal, sys\nfrom phalanx.host.interrupts import Notice\n" + code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            for each in signals:
                assert process.stdout.readline() == b"ready\n"
                process.send_signal(each)
                process.stdin.write(b".")
                process.stdin.flush()
            return process.wait(60)
        finally:
            process.kill()


def test_a_process_that_saves_and_leaves_keeps_its_code_whatever_comes_meanwhile():
    code = """
try:
    with Notice() as notice:
        print("ready", flush=True)
        os.read(0, 1)
        sys.exit(75 if notice.seen() else 1)
finally:
    print("ready", flush=True)
    os.read(0, 1)
"""
    assert ended(code, TERM, TERM) == 75


def test_a_notice_that_nobody_acts_on_ends_the_process_after_all():
    code = """
with Notice() as notice:
    signal.raise_signal(signal.SIGTERM)
print("not reached", flush=True)
signal.pause()
"""
    assert ended(code) == -TERM


def test_an_error_is_not_hidden_by_the_end_that_a_notice_asks_for():
    with pytest.raises(ZeroDivisionError), Notice():
        signal.raise_signal(TERM)
        1 / 0  # noqa: B018
    assert signal.getsignal(TERM) is signal.SIG_DFL


def test_a_handler_that_python_cannot_see_is_put_back():
    """As JAX's service for preemption sets one."""
    code = """
import ctypes
calls = []
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(calls.append)
ctypes.CDLL(None).signal(15, handler)
with Notice() as notice:
    signal.raise_signal(signal.SIGTERM)
    assert notice.seen() and not calls
    notice.forget()
signal.raise_signal(signal.SIGTERM)
sys.exit(0 if calls == [15] else 1)
"""
    assert ended(code) == 0
