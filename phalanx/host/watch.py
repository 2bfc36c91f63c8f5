"""Waiting: for bytes, for room to write, for signals, for a point in time; one wait for all of them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

_TOLD = ("SIGINT", "SIGTERM", "SIGHUP")
_CHUNK = 64 * 1024
_ROOM = 512  # POSIX: what is writable takes so many bytes at once without blocking
if hasattr(select, "PIPE_BUF"):
    _ROOM = select.PIPE_BUF


def now() -> float:
    """Seconds of a clock that only goes forward."""
    return time.monotonic()


@dataclass(frozen=True)
class Ready:
    """What a wait ended with; all empty where the time was up.

    Args:
        readable: File descriptors with bytes, or at their end.
        writable: File descriptors with room, or that nobody reads any more.
        told: Names of the signals that ask this process to end, in their order.
        child: A child ended or may have.
    """

    readable: Collection[int] = ()
    writable: Collection[int] = ()
    told: list[str] = field(default_factory=list)
    child: bool = False


class Watch:
    """While it is entered, signals that ask to end arrive as values of `wait`.

    A signal that this process was started to ignore, as `nohup` does with SIGHUP, stays ignored.
    """

    def __enter__(self) -> Watch:
        _fill_standard_streams()
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for each in (*(signal.Signals[name] for name in _TOLD), signal.SIGCHLD):
            if each is signal.SIGCHLD or signal.getsignal(each) is not signal.SIG_IGN:
                self._before[each] = signal.signal(each, _heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, readers: Collection[int], writers: Collection[int], until: float | None) -> Ready:
        """Wait until something is ready.

        Args:
            readers: File descriptors to read.
            writers: File descriptors to write.
            until: When to give up, on the clock of `now`; None waits for as long as it takes.

        Returns:
            What is ready.
        """
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        left = None if until is None else max(0, round(1000 * (until - now()) + 0.5))
        found = [number for number, _ in poll.poll(left)]
        numbers = self._signals() if self._reader in found else b""
        return Ready(
            readable=[each for each in found if each in readers],
            writable=[each for each in found if each in writers],
            told=[signal.Signals(each).name for each in numbers if each != signal.SIGCHLD],
            child=signal.SIGCHLD in numbers,
        )

    def _signals(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._reader, _CHUNK)
        return b""


def has_bytes(number: int) -> bool:
    """Whether a file descriptor has bytes now, or is at its end."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


def read(number: int) -> bytes:
    """What a readable file descriptor has; nothing at its end."""
    try:
        return os.read(number, _CHUNK)
    except OSError:  # a terminal that is gone
        return b""


def write(number: int, data: bytes) -> int:
    """Write as much to a writable file descriptor as never blocks.

    Args:
        number: The file descriptor.
        data: Bytes.

    Returns:
        How many were written; -1 if none ever will be.
    """
    try:
        return os.write(number, data[:_ROOM])
    except BlockingIOError:
        return 0
    except OSError:
        return -1


def close(number: int) -> None:
    """Close a file descriptor."""
    os.close(number)


def same_file(one: int, other: int) -> bool:
    """Whether two file descriptors lead to the same terminal, pipe or file."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


def _fill_standard_streams() -> None:
    """Where this process was started without one (`>&-`), no other file may take its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one


def _heard(number: int, frame: FrameType | None) -> None:
    """Python notes the signal for `wait` before it calls this."""


def pause(readers: Collection[int], until: float) -> None:
    """Wait until one of several file descriptors has bytes, or until a moment of the clock of `now`."""
    poll = select.poll()
    for each in readers:
        poll.register(each, select.POLLIN)
    poll.poll(max(0, round(1000 * (until - now()) + 0.5)))
