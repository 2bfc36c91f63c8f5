"""The launcher's waits: each writes what can be written and hears who tells it to end."""

from __future__ import annotations

from collections.abc import Collection

from phalanx.host import watch
from phalanx.launch.console import ERR, OUT, Console

_UNHEARD = "SIGPIPE"
_LAST_WORDS = 1.0  # seconds to write what is left, once told to end
_AGAIN = 0.3  # seconds; a signal that comes sooner is an echo, as `timeout` and `make` send them


class Turns:
    """One wait after the other; between them nothing blocks.

    Args:
        eyes: What waits.

    Attributes:
        console: What is to be written.
        told: The signal that ended the launcher, `"SIGPIPE"` where its output cannot be written, or None.
        hurry: It was told again.
    """

    def __init__(self, eyes: watch.Watch) -> None:
        self._eyes = eyes
        self.console = Console(joined=watch.same_file(OUT, ERR))
        self.told: str | None = None
        self.hurry = False
        self._first = 0.0

    def turn(self, readers: Collection[int], until: float | None) -> watch.Ready:
        """Wait until something happens, and do what concerns the launcher itself.

        Args:
            readers: File descriptors to read; while too much waits to be written, none is looked at.
            until: When to give up; None waits for as long as it takes.

        Returns:
            What is ready.
        """
        ends = [each for each in (until, self.console.due) if each is not None]
        ready = self._eyes.wait(
            () if self.console.full else readers, self.console.waiting, min(ends, default=None)
        )
        self.console.settle(watch.now())
        for stream in ready.writable:
            count = watch.write(stream, self.console.pending(stream))
            if count < 0:
                self.console.drop(stream)
                self.told = self.told or _UNHEARD
            else:
                self.console.written(stream, count)
        for name in ready.told:
            if self.told in (None, _UNHEARD):
                self.told, self._first = name, watch.now()
            elif watch.now() >= self._first + _AGAIN:
                self.hurry = True
        return ready

    def pause(self, seconds: float) -> None:
        """Let time pass, unless told to end."""
        until = watch.now() + seconds
        while self.told is None and watch.now() < until:
            self.turn((), until)

    def write_rest(self) -> None:
        """Write what is left; a slow reader has all the time, unless the launcher is told to end."""
        until = None
        while self.console.waiting or self.console.due is not None:
            if self.told is not None and until is None:
                until = watch.now() + _LAST_WORDS
            if until is not None and watch.now() >= until:
                return
            self.turn((), until)
