"""What the launcher's own output shows: the chief as it is, the others line by line behind their name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

OUT, ERR = 1, 2
_FULL = 256 * 1024
_BACK = frozenset(b"\r\b")
_QUIET = 0.05  # seconds without a byte after which a bar is between two drawings
_MOVING = 0.5  # seconds that a worker's line waits for a bar that never is
_BEGUN = 1.0  # seconds that it waits for the end of a line that is no bar


@dataclass
class _Place:
    """Where lines of one or both streams follow each other."""

    inside: bool = False  # the chief's line has begun and not ended
    bar: bool = False  # and has drawn itself again
    heard: float = 0.0  # when its last byte came
    held: list[tuple[int, bytes]] = field(default_factory=list)  # whole lines that wait for its end
    since: float = 0.0  # when the first of them came


class Console:
    """Two streams of bytes that wait to be written.

    The chief's bytes pass as they come, so its progress bar stays one bar that draws itself again. A line of
    another worker waits a moment for the end of the chief's line, or for its bar to stand still; then
    it begins a new one. So no line lands inside another.

    Args:
        joined: Standard output and error are the same terminal or file, so their lines share a cursor.

    Example:
        >>> console = Console(joined=True)
        >>> console.chief(OUT, b"\\r1/2 loss: 3", now=0)
        >>> console.other(ERR, 1, [b"a warning"], now=0.01)
        >>> console.pending(OUT)
        b'\\r1/2 loss: 3'
        >>> console.settle(now=0.2)
        >>> console.pending(OUT)
        b'\\r1/2 loss: 3\\n[worker 1] a warning\\n'
    """

    def __init__(self, *, joined: bool) -> None:
        self._waiting = {OUT: bytearray(), ERR: bytearray()}
        out = _Place()
        self._places = {OUT: out, ERR: out if joined else _Place()}
        self._target = {OUT: OUT, ERR: OUT if joined else ERR}

    def chief(self, stream: int, data: bytes, now: float) -> None:
        """Pass on bytes of worker 0.

        Args:
            stream: `OUT` or `ERR`.
            data: The bytes, not empty.
            now: The time.
        """
        place = self._places[stream]
        if place.held and b"\n" in data:
            whole, end, data = data.rpartition(b"\n")
            self._add(stream, whole + end)
            place.inside = False
            self._release(place)
        if data:
            self._add(stream, data)
            open_line = data.rpartition(b"\n")
            place.bar = bool(set(open_line[2]) & _BACK) or (place.bar and not open_line[1])
            place.inside = bool(open_line[2]) or (place.inside and not open_line[1])
        place.heard = now

    def other(self, stream: int, index: int, lines: Iterable[bytes], now: float) -> None:
        """Show lines of another worker.

        Args:
            stream: `OUT` or `ERR`.
            index: Which worker.
            lines: Lines without their ends.
            now: The time.
        """
        place = self._places[stream]
        place.since = place.since if place.held else now
        place.held += [(stream, b"[worker %d] %s\n" % (index, line)) for line in lines]
        self.settle(now)

    def say(self, text: str) -> None:
        """Show a text of the launcher itself, on standard error, behind all that came before.

        Args:
            text: One line or several.
        """
        place = self._places[ERR]
        place.held.append((ERR, f"phalanx: {text}\n".encode(errors="backslashreplace")))
        self._release(place)

    def settle(self, now: float) -> None:
        """Show the lines that have waited long enough.

        Args:
            now: The time.
        """
        for place in self._places.values():
            if place.held and (not place.inside or now >= self._due(place)):
                self._release(place)

    @property
    def due(self) -> float | None:
        """When `settle` has something to do, if it has."""
        return min((self._due(place) for place in self._places.values() if place.held), default=None)

    def pending(self, stream: int, most: int = _FULL) -> bytes:
        """The next bytes to write, none where there is nothing to write.

        Args:
            stream: `OUT` or `ERR`.
            most: No more than these.

        Returns:
            The bytes; they wait until `written` says that they are.
        """
        return bytes(self._waiting[stream][:most])

    def written(self, stream: int, count: int) -> None:
        """Forget bytes that were written."""
        del self._waiting[stream][:count]

    def drop(self, stream: int) -> None:
        """Forget everything: nobody reads this stream any more."""
        self._waiting[stream].clear()

    @property
    def waiting(self) -> list[int]:
        """Streams with bytes to write."""
        return [stream for stream, data in self._waiting.items() if data]

    @property
    def full(self) -> bool:
        """So much waits to be written that nothing more is to be read."""
        return any(len(data) > _FULL for data in self._waiting.values())

    @staticmethod
    def _due(place: _Place) -> float:
        return min(place.heard + _QUIET, place.since + _MOVING) if place.bar else place.since + _BEGUN

    def _release(self, place: _Place) -> None:
        for stream, line in place.held:
            self._add(stream, (b"\n" if place.inside else b"") + line)
            place.inside = False
        place.held.clear()

    def _add(self, stream: int, data: bytes) -> None:
        self._waiting[self._target[stream]] += data
