"""Ctrl-C at a moment when it does no harm, and SIGTERM as news."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from phalanx.restart import PREEMPTED

_LARGEST = 512  # bytes that no system's `struct sigaction` exceeds


class held:
    """Hold Ctrl-C back until the block is left; a second one goes through.

    For blocks in which a state has left one place and not yet reached the next: an exception between the
    two would lose it. Outside the main thread, and where the user has a handler of their own, nothing is
    held.
    """

    def __enter__(self) -> None:
        self._noted = False
        self._held = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._held:
            signal.signal(signal.SIGINT, self._note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._noted:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> Any:
        if self._noted:
            signal.default_int_handler(number, frame)
        self._noted = True


class Notice:
    """SIGTERM as news instead of an end, so that there is time to save.

    Slurm, Kubernetes and spot machines send it before they take the machine. The first one is noted; those
    that follow change nothing, so that none of them cuts a save short. Ctrl-C works as before. A handler of
    the user's own is called too, once; where SIGTERM was ignored before, it stays ignored. Outside the main
    thread nothing is caught.

    At the end what was there before is put back. A notice that nobody has acted on then arrives as it would
    have without this, unless an error is on its way. Where a process ends because it, or another worker, was
    asked to go (`SystemExit` leaves the block), SIGTERM stays ignored: its exit code is to be its own.

    Example:
        >>> with Notice() as notice:
        ...     print(notice.seen())
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(notice.seen())
        ...     notice.forget()
        None
        SIGTERM
    """

    def __init__(self) -> None:
        self._seen: str | None = None
        self._before: Any = signal.SIG_IGN
        self._below: ctypes.Array[ctypes.c_char] | None = None

    def seen(self) -> str | None:
        """The signal that has come, or None."""
        return self._seen

    def forget(self) -> None:
        """Take the notice as dealt with: it is not passed on at the end."""
        self._seen = None

    def __enter__(self) -> Notice:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGTERM)
        if self._before is not signal.SIG_IGN:
            self._below = _action(None)  # JAX, for one, sets handlers that Python cannot see
            signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is signal.SIG_IGN:
            return
        if isinstance(error, SystemExit) and (self._seen or error.code == PREEMPTED):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
        if self._below is not None:
            _action(self._below)
        if self._seen and error is None and not callable(self._before):  # a user's own handler has had it
            os.kill(os.getpid(), signal.SIGTERM)

    def _note(self, number: int, frame: FrameType | None) -> Any:
        if self._seen is None:
            self._seen = signal.Signals(number).name
            if callable(self._before):
                self._before(number, frame)


def _action(wanted: ctypes.Array[ctypes.c_char] | None) -> ctypes.Array[ctypes.c_char] | None:
    """What the system does on SIGTERM, below what Python knows; sets it where it is given."""
    found = ctypes.create_string_buffer(_LARGEST)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).sigaction(int(signal.SIGTERM), wanted, found)
        return found
    return None
