"""Where a feed stands: plain values from which another process goes on."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

_MOST = 2**40


@dataclass(frozen=True, kw_only=True)
class Position:
    """The place of a feed in the user's data.

    Args:
        hooks: How often the data was told that an epoch begins or ends; odd within an epoch.
        drawn: `(number, random state)` of those calls that drew global random numbers.
        reads: Batches that were trained on, of each pass through the data that was begun.
        open: The last pass goes on.
        step: Batches of this epoch that were trained on.
        ended: The epoch has no more batches.
        known: Batches of a pass, where only reading could tell.
        warned: The user knows that an epoch ended early.
        opened: Global random state from which the last pass drew its order.
        ahead: The same before the next batch was read; None if it was not.
        first: Checksum of the first batch; None where it was not looked at.
        alike: Rows and rows of a batch, where the data tells them.
    """

    hooks: int = 0
    drawn: list[Any] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    open: bool = False
    step: int = 0
    ended: bool = False
    known: int | None = None
    warned: bool = False
    opened: Any = None
    ahead: Any = None
    first: int | None = None
    alike: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [self.hooks, self.step, *self.reads, *([] if self.known is None else [self.known])]
        if not all(type(each) is int and 0 <= each < _MOST for each in counts) or self.hooks > _MOST >> 20:
            raise ValueError(f"counts of a position: {str(counts)[:200]}")

    @property
    def total(self) -> int:
        """Batches of all passes."""
        return sum(self.reads)


def fingerprint(batch: Any) -> int:
    """Checksum of a host batch: what tells two orders of rows apart.

    Example:
        >>> fingerprint((np.arange(3), None)) == fingerprint((np.arange(3), None))
        True
    """
    total = 0
    for leaf in jax.tree.leaves(batch):
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            total = zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data, total)
    return total
