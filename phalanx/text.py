"""Text for people: tables that line up, values quoted at a readable length."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 80


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], align: str | None = None) -> str:
    """An aligned table of plain text.

    Args:
        headers: One title per column.
        rows: Cells, printed with `str`.
        align: One letter per column, `l` or `r`; all left if not given.

    Returns:
        Lines without trailing blanks.

    Example:
        >>> print(table(("model", "ms"), [("mlp", 1.2), ("cnn", 10.5)], align="lr"))
        model    ms
        mlp     1.2
        cnn    10.5
    """
    align = align or "l" * len(headers)
    lines = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, align, strict=True)
        ).rstrip()
        for line in lines
    )


def quote(value: object) -> str:
    """A value as Python writes it, on one line, cut where it is long; what it holds cannot act on a terminal.

    Args:
        value: Anything; texts longer than 80 characters lose their middle and gain their length.

    Returns:
        Printable text.

    Example:
        >>> print(quote("two" + chr(10) + "lines"))
        'two\\nlines'
        >>> quote(["a", 2])
        "['a', 2]"
    """
    text = _SHORT.repr(value)
    if isinstance(value, str) and len(value) > _SHORT.maxstring:
        return f"{text} ({len(value)} characters)"
    return text


def many(count: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> many(1, "worker"), many(2, "worker")
        ('1 worker', '2 workers')
    """
    return f"{count} {noun}{'s'[: count != 1]}"
