"""Which rows of a global batch belong to which replica: arithmetic alone.

A batch is cut into runs of `ceil(rows / replicas)` rows, as tf.distribute does: the first replicas are
full, one may be short, the last ones may be empty. Arrays on devices need equal parts, so a batch
travels padded to `padded_rows` and is cut back to its true rows inside the compiled step.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.errors import SettingError, message


def rows_each(rows: int, replicas: int) -> int:
    """Rows of a full replica.

    Args:
        rows: Rows of the global batch.
        replicas: Model copies that share it.

    Returns:
        The ceiling of `rows / replicas`.

    Example:
        >>> rows_each(37, 4)
        10
    """
    _check(rows, replicas)
    return -(-rows // replicas)


def padded_rows(rows: int, replicas: int) -> int:
    """Rows of a batch once it is padded to equal parts.

    Example:
        >>> padded_rows(37, 4)
        40
    """
    return rows_each(rows, replicas) * replicas


def rows_per_replica(rows: int, replicas: int) -> tuple[int, ...]:
    """True rows of each replica; they sum to `rows`.

    Example:
        >>> rows_per_replica(37, 4)
        (10, 10, 10, 7)
        >>> rows_per_replica(5, 4)
        (2, 2, 1, 0)
    """
    each = rows_each(rows, replicas)
    return tuple(max(0, min(each, rows - replica * each)) for replica in range(replicas))


def own_rows(rows: int, replicas: int, first: int, count: int) -> tuple[int, int]:
    """The rows of a batch that neighbouring replicas take, those of one worker, as `(start, stop)`.

    Args:
        rows: Rows of the global batch.
        replicas: Model copies that share it.
        first: Index of the worker's first replica.
        count: How many it has.

    Example:
        >>> own_rows(37, 4, first=2, count=2)
        (20, 37)
        >>> own_rows(1, 4, first=2, count=2)
        (1, 1)
    """
    each = rows_each(rows, replicas)
    return min(rows, first * each), min(rows, (first + count) * each)


def is_equal_runs(sizes: Sequence[int]) -> bool:
    """True if replicas have the rows that `rows_per_replica` deals: all padding stands at the end.

    Example:
        >>> is_equal_runs((2, 2, 1, 0)), is_equal_runs((1, 2, 0, 2))
        (True, False)
    """
    return tuple(sizes) == rows_per_replica(sum(sizes), len(sizes))


def _check(rows: int, replicas: int) -> None:
    if rows < 0 or replicas < 1:
        raise SettingError(
            message(
                "A batch has zero or more rows and at least one replica to share them.",
                f"rows={rows}, replicas={replicas}",
                "rows_per_replica(rows=64, replicas=2)",
            )
        )
