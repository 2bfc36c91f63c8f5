"""A process of a few lines that outlives this one only to kill the groups that it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal

_FORGET, _DONE = b"forget", b"done"


class Guard:
    """Watches this process through a pipe: when the pipe ends without a farewell, this process was killed.

    It is a fork, so it must be made before there are threads.
    """

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _stand(reader)
            finally:
                os._exit(0)
        os.close(reader)

    def watch(self, pid: int | None) -> None:
        """Name a leader of a session to kill with its session, or None when none is left."""
        self._tell(_FORGET if pid is None else b"%d" % pid)

    def dismiss(self) -> None:
        """Let it go, and wait for that."""
        self._tell(_DONE)
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard: the work goes on without it
            os.write(self._writer, word + b"\n")


def _stand(reader: int) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, reader)
    os.closerange(reader + 1, os.sysconf("SC_OPEN_MAX"))
    leaders: set[int] = set()
    rest = b""
    while data := os.read(reader, 4096):
        *words, rest = (rest + data).split(b"\n")
        for word in words:
            if word == _DONE:
                return
            if word == _FORGET:
                leaders.clear()
            else:
                leaders.add(int(word))
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    for pid in _members(leaders):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _members(leaders: set[int]) -> list[int]:
    """Processes of these sessions, also those that made a group of their own."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdecimal():
            with contextlib.suppress(OSError):
                if os.getsid(int(name)) in leaders:
                    found.append(int(name))
    return found
