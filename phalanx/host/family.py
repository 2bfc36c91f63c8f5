"""Child processes with all that they start themselves: begun, signalled, and ended to the last one.

Each child leads a session of its own, so a signal to its group reaches what it started, and a terminal's
Ctrl-C reaches only this process. On Linux, orphans come to this process whatever session they went to, and
if it dies without a word (`kill -9`), the kernel kills the children and a guard their sessions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from phalanx.errors import SettingError, message
from phalanx.host.guard import Guard
from phalanx.host.procs import options_of_python

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Child:
    """One child process.

    Args:
        pid: Its number, and that of its session and group.
        out: Where its standard output is read.
        err: Where its standard error is read.
    """

    pid: int
    out: int
    err: int


class Family:
    """The children of this process that were started here, while it is entered; at its exit none is left.

    Children that this process had before are left alone.
    """

    def __enter__(self) -> Family:
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._prctl = _prctl() if _LINUX else None
        if self._prctl is not None:
            self._prctl(_SET_CHILD_SUBREAPER, 1)
        self._guard = Guard()
        self._strangers = {os.getpid(), *_below({os.getpid()}, _parents())}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal("SIGKILL")
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
        self._guard.dismiss()
        if self._prctl is not None:
            self._prctl(_SET_CHILD_SUBREAPER, 0)

    def start_python(self, arguments: Sequence[str], environ: Mapping[str, str]) -> Child:
        """Start the same Python on other arguments, without input; no shell sees them.

        Args:
            arguments: What stands behind `python`; options that this Python was started with stay.
            environ: The whole environment.

        Returns:
            The child.

        Raises:
            SettingError: The system does not start it.
        """
        command = [sys.executable, *options_of_python(sys.orig_argv), *arguments]
        try:
            process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=self._die_with_parent(),
            )
        except (OSError, ValueError) as error:
            raise SettingError(
                message(
                    "The system starts a worker with this command line and environment.",
                    f"{error}",
                    "phalanx run train.py   # the same, without workers",
                )
            ) from None
        self._running[process.pid] = process
        self._guard.watch(process.pid)
        assert process.stdout is not None and process.stderr is not None
        out, err = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
        process.stdout.close()
        process.stderr.close()
        return Child(process.pid, out, err)

    def ended(self) -> dict[int, int]:
        """Children that ended since the last call; ended orphans leave the system's table, too.

        Returns:
            For each its exit code, or the negative number of the signal that ended it.
        """
        codes = {}
        for pid, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                codes[pid] = code
                del self._running[pid]
        if _LINUX:
            for pid in _children(_parents()) - self._strangers - self._running.keys():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return codes

    def alive(self) -> set[int]:
        """Children, and what they and theirs have started."""
        if not _LINUX:
            return set(self._running)
        return _below({os.getpid()}, _parents()) - self._strangers

    def signal(self, name: str) -> None:
        """Send a signal to every child's group, and to those of the family that have left their group."""
        number = signal.Signals[name]
        for pid in self._running:
            _send(os.killpg, pid, number)
        for pid in self.alive() - self._running.keys():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) not in self._running:
                    _send(os.kill, pid, number)

    def forget(self) -> None:
        """Tell the guard that the family has ended."""
        self._guard.watch(None)

    def _die_with_parent(self) -> Callable[[], None] | None:
        prctl, parent = self._prctl, os.getpid()
        if prctl is None:
            return None

        def ask_kernel() -> None:
            prctl(_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it was faster
                os._exit(1)

        return ask_kernel


def exit_code(status: int | str) -> int:
    """The exit code that a shell would show.

    Args:
        status: An exit code, the negative number of a signal, or the name of a signal.

    Returns:
        0 to 255.

    Example:
        >>> exit_code(3), exit_code(-9), exit_code("SIGINT")
        (3, 137, 130)
    """
    if isinstance(status, str):
        status = -signal.Signals[status]
    return 128 - status if status < 0 else status


def describe(status: int) -> str:
    """How a process ended, in words.

    Args:
        status: Its exit code, or the negative number of a signal.

    Returns:
        The end of a sentence.

    Example:
        >>> describe(3)
        'left with code 3'
        >>> describe(-9)
        'was ended by SIGKILL (code 137)'
    """
    if status >= 0:
        return f"left with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # real-time signals have no names
        name = f"signal {-status}"
    return f"was ended by {name} (code {exit_code(status)})"


def _send(how: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or it became another user's
        how(pid, number)


def _prctl() -> Callable[[int, int], int]:
    library = ctypes.CDLL(None)

    def call(option: int, value: int) -> int:
        return int(library.prctl(option, ctypes.c_ulong(value), 0, 0, 0))

    return call


def _parents() -> dict[int, int]:
    """Each process that there is, with its parent."""
    parents = {}
    for name in os.listdir("/proc") if _LINUX else []:
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return parents


def _children(parents: Mapping[int, int]) -> set[int]:
    return {pid for pid, parent in parents.items() if parent == os.getpid()}


def _below(tops: set[int], parents: Mapping[int, int]) -> set[int]:
    """Descendants, without the tops.

    Example:
        >>> sorted(_below({1}, {2: 1, 3: 2, 4: 9}))
        [2, 3]
    """
    found: set[int] = set()
    level = set(tops)
    while level:
        level = {pid for pid, parent in parents.items() if parent in level} - found
        found |= level
    return found
