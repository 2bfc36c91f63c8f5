"""What workers print: bytes into lines, progress bars told from prints, and the last lines kept."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence

_LONGEST = 1024 * 1024  # bytes that wait for their newline; a longer line is shown in pieces
_LONGEST_BAR = 4096
_BAR = re.compile(  # Keras's own: 3/10 ━━━━━ 1s 20ms/step - loss: 0.1234 - accuracy: 0.9876
    rb"(?:%(s)s|\s)*\d+/(?:\d+|Unknown)(?:%(s)s|\s|\xe2\x94\x81)+"
    rb"(?:\d+s|[\d:]+)(?:%(s)s)*\s+\d+[mu]?s/(?:step|epoch)"
    rb"(?:\s+-\s[^:\s]+:\s-?(?:\d+\.\d{4}(?:e[-+]\d+)?|nan|inf|\d+))*\s*" % {b"s": rb"\x1b\[[0-9;]*m"}
)


class Lines:
    """Bytes of one stream of one worker, cut into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes, give the lines that they complete.

        Args:
            data: What was read.

        Returns:
            Complete lines without their ends.

        Example:
            >>> lines = Lines()
            >>> lines.feed(b"one"), lines.feed(b" line\\nand"), lines.flush()
            ([], [b'one line'], [b'and'])
        """
        first, *others = data.split(b"\n")
        self._rest += first
        whole = []
        for each in others:
            whole += self.flush(also_empty=True)
            self._rest += each
        while len(self._rest) > _LONGEST:
            whole.append(bytes(self._rest[:_LONGEST]))
            del self._rest[:_LONGEST]
        return whole

    def flush(self, *, also_empty: bool = False) -> list[bytes]:
        """The line without an end, if there is one; an empty one counts if that is said."""
        rest = bytes(self._rest)
        self._rest.clear()
        return [rest] if rest or also_empty else []


class Tail:
    """The last lines of a stream.

    Args:
        count: How many.
    """

    def __init__(self, count: int = 20) -> None:
        self._kept: collections.deque[bytes] = collections.deque(maxlen=count)

    def add(self, lines: Sequence[bytes]) -> None:
        """Keep these, forget the oldest."""
        self._kept.extend(last_drawing(line) for line in lines)

    def text(self) -> str:
        """The lines as text; what is no UTF-8 is shown as bytes."""
        return b"\n".join(self._kept).decode("utf-8", errors="backslashreplace")


def last_drawing(line: bytes) -> bytes:
    """What a terminal would show of a line that went back to its start to draw itself again.

    Example:
        >>> last_drawing(b"10%\\r50%\\r100%")
        b'100%'
        >>> last_drawing(b"a line of Windows\\r")
        b'a line of Windows'
    """
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def shown(line: bytes) -> bytes | None:
    """What is shown of a line of a worker that is not the chief.

    Its prints, whole; of a line that draws itself again, the last drawing; of Keras's progress bar, nothing
    but what was printed right behind it, for the chief's bar is there already.

    Args:
        line: One line without its end.

    Returns:
        The line to show, or None.

    Example:
        >>> shown(b"loss is fine")
        b'loss is fine'
        >>> shown("\\x08\\x08\\r1/2 ━━━━ 0s 3ms/step - loss: 1.5000a print of mine".encode())
        b'a print of mine'
    """
    last = last_drawing(line)
    if last == line or not (bar := _BAR.match(last[:_LONGEST_BAR])):
        return last
    return last[bar.end() :] or None  # a print in the middle of an epoch stands right behind the bar


def port_taken(text: str, ports: Sequence[int]) -> int | None:
    """The port of ours that another program has, if that is what a worker's last lines say.

    Args:
        text: The lines.
        ports: Ours.

    Returns:
        The port, or None.

    Example:
        >>> port_taken("bind 127.0.0.1:7001: Address already in use", [7001, 7002])
        7001
        >>> port_taken("bind 127.0.0.1:6006: Address already in use", [7001, 7002]) is None
        True
    """
    for line in text.splitlines():
        if re.search(r"in use|EADDRINUSE|[Ff]ailed to bind|No address added", line):
            for port in ports:
                if re.search(rf"(?<!\d){port}(?!\d)", line):
                    return port
    return None
