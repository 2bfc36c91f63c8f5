"""One worker's part of a global batch, where it does not hold all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from phalanx.rows import has_rows

Own = Callable[[int], tuple[int, int]]
"""Rows of a global batch -> the `(start, stop)` of them that this worker takes."""


@dataclass(frozen=True)
class Share:
    """The rows of a global batch that one worker holds.

    Args:
        batch: Tree of host arrays with these rows alone; it may have none.
        rows: Rows of the whole batch.
        sizes: True rows of every replica of all workers; None for equal runs.
    """

    batch: Any
    rows: int
    sizes: tuple[int, ...] | None = None


def numbers(rows: int, batch_size: int, own: Own) -> np.ndarray:
    """Which rows of arrays one worker takes, batch by batch.

    Args:
        rows: Rows of the arrays.
        batch_size: Rows of a global batch.
        own: Which rows of a batch are this worker's.

    Example:
        >>> numbers(7, 4, lambda rows: (0, rows // 2)).tolist()
        [0, 1, 4]
    """
    firsts = range(0, rows, batch_size)
    parts = [np.arange(*own(min(batch_size, rows - first))) + first for first in firsts]
    return np.concatenate(parts) if parts else np.arange(0)


def without_rows(batch: Any) -> Any:
    """A batch like this one, but empty: what a worker brings that is out of data."""
    return jax.tree.map(lambda column: np.asarray(column)[:0] if has_rows(column) else column, batch)


def like_whole(batch: Any, rows: int) -> Any:
    """A batch of so many rows for its shapes alone: one row, again and again, in no memory."""
    return jax.tree.map(
        lambda column: np.broadcast_to(column[:1], (rows, *column.shape[1:])) if has_rows(column) else column,
        batch,
    )
