"""grain datasets whose rows have numbers: each worker reads only its own; the one file that knows grain."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.data.sharding import Sharding
from phalanx.data.share import Own, Share, like_whole, without_rows
from phalanx.engine import keras as engine
from phalanx.errors import DataError, message


@dataclass(frozen=True)
class Rows:
    """A `grain` dataset of batches, taken apart.

    Args:
        rows: The `MapDataset` of single rows under it.
        batch_size: Rows of a batch.
        stack: Rows -> a batch.
        num_batches: Batches of one pass; None for a dataset that repeats without end.
    """

    rows: Any
    batch_size: int
    stack: Callable[[list[Any]], Any]
    num_batches: int | None


def find(data: Any) -> Rows | None:
    """The rows under a dataset that ends in `batch`, or None where they have no numbers of their own."""
    grain = sys.modules.get("grain")
    if grain is None or not isinstance(data, (grain.MapDataset, grain.IterDataset)):
        return None
    names = ("_parent", "_batch_size", "_batch_fn", "_drop_remainder")
    known = all(hasattr(data, name) for name in names)
    if type(data).__name__ not in ("BatchMapDataset", "BatchIterDataset") or not known:
        return None
    rows, size, stack = data._parent, data._batch_size, data._batch_fn
    if getattr(stack, "__name__", "") != "make_batch":
        return None  # a function of the user's may look at all rows of a batch
    if type(rows).__name__ == "PrefetchIterDataset":  # what to_iter_dataset makes
        rows = rows._parent
    if not isinstance(rows, grain.MapDataset) or _drops(rows):
        return None
    whole, rest = divmod(len(rows), size)
    count = whole + (1 if rest and not data._drop_remainder else 0)
    return Rows(rows, size, stack, None if len(rows) >= sys.maxsize - 1 else count)


def _drops(rows: Any) -> bool:
    """True if a step under the rows may leave some out: then their numbers have holes."""
    kinds = ("Filter", "FlatMap")
    return type(rows).__name__.startswith(kinds) or any(_drops(each) for each in rows.parents)


class GrainRows:
    """A source of this worker's rows of each global batch, read ahead by grain's own threads.

    Args:
        rows: What `find` found.
        name: What the user calls the data, for texts.
        own: Which rows of a batch this worker takes.
        sharding: Which worker reads what, and why.
    """

    one_shot = False
    reuses_memory = False
    lacks_targets = False
    skips = True
    draws = False
    doubt = None

    def __init__(self, rows: Rows, name: str, own: Own, sharding: Sharding) -> None:
        if rows.num_batches == 0:
            raise DataError(
                message("Data has at least one batch.", f"{name} has 0 batches", "print(len(data))")
            )
        self.rows, self.name, self._own, self.sharding = rows, name, own, sharding
        self.num_batches = rows.num_batches
        self.alike = {"rows": len(rows.rows), "rows of a batch": rows.batch_size}

    def begin(self) -> None:
        """An epoch begins: nothing to tell a dataset."""

    def end(self) -> None:
        """An epoch ends, likewise."""

    def peek(self) -> Any:
        """A batch like the first, for its shapes, made of its first row."""
        batch = engine.as_host(self.rows.stack([self.rows.rows[0]]))
        return like_whole(batch, self._size(0))

    def batches(self) -> Iterator[Share]:
        """This worker's share of each batch, from the start."""
        return self.later(0)

    def later(self, skip: int) -> Iterator[Share]:
        """The same without the first `skip` batches, which are not read."""
        numbers = range(skip, sys.maxsize if self.num_batches is None else self.num_batches)
        grain = sys.modules["grain"]
        wanted = _Wanted(self, numbers)
        for number, batch in zip(numbers, grain.MapDataset.source(wanted), strict=False):
            yield Share(engine.as_host(batch), self._size(number))

    def read(self, number: int) -> Any:
        """This worker's rows of a batch, stacked; where it has none, one is read for its shape."""
        first = number * self.rows.batch_size
        start, stop = self._own(self._size(number))
        if start == stop:
            return without_rows(self.rows.stack([self.rows.rows[first]]))
        return self.rows.stack([self.rows.rows[i] for i in range(first + start, first + stop)])

    def _size(self, number: int) -> int:
        return min(self.rows.batch_size, len(self.rows.rows) - number * self.rows.batch_size)


class _Wanted:
    """What grain's threads ask for, by number of batch."""

    def __init__(self, source: GrainRows, numbers: range) -> None:
        self._source, self._numbers = source, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Any:
        return self._source.read(self._numbers[number])
