"""Text for people: tables that line up."""

from __future__ import annotations

from collections.abc import Sequence


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


def many(count: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> many(1, "worker"), many(2, "worker")
        ('1 worker', '2 workers')
    """
    return f"{count} {noun}{'s'[: count != 1]}"
