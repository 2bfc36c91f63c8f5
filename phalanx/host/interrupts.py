"""Ctrl-C at a moment when it does no harm."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


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
