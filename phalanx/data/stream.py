"""A generator as host batches: read once, by nobody else, and never further than asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.data import columns
from phalanx.data.sharding import Sharding
from phalanx.engine import keras as engine
from phalanx.errors import DataError, message
from phalanx.rows import has_rows

_END = object()


class Stream:
    """A source that goes on where it stopped, in the next epoch as in the next `fit`.

    Keras's own reader takes two batches ahead at once: a generator that uses its memory again has by then
    overwritten the first, and the next `fit` on it finds two batches gone.

    Args:
        generator: The user's generator of `(x,)`, `(x, y)` or `(x, y, sample_weight)`.
        name: What the user calls the data, for texts.
    """

    one_shot = True
    reuses_memory = True
    num_batches = None
    skips = False
    draws = True
    sharding: Sharding
    doubt: str | None = None

    def __init__(self, generator: Iterator[Any], name: str) -> None:
        self.name = name
        self._generator = generator
        self._held: list[Any] = []

    @property
    def alike(self) -> dict[str, int]:
        """What must be the same on all workers: the rows of a batch that was read already."""
        found = (column for batch in self._held for _, column in columns.named(batch) if has_rows(column))
        first = next(found, None)
        return {} if first is None else {"rows of the next batch": int(first.shape[0])}

    def begin(self) -> None:
        """An epoch begins: nothing to tell a generator."""

    def end(self) -> None:
        """An epoch ends, likewise."""

    def peek(self) -> Any:
        """The next batch, for its shapes; it stays the next one. None if there is none."""
        if not self._held:
            self._held = [batch for batch in [self._read()] if batch is not None]
        return self._held[0] if self._held else None

    def batches(self) -> Iterator[Any]:
        """Go on where the last reader stopped."""
        while True:
            batch = self._held.pop() if self._held else self._read()
            if batch is None:
                return
            yield batch

    def _read(self) -> Any:
        # Not a `for` loop over it: closing our reader must not close the user's generator.
        batch = next(self._generator, _END)
        if batch is _END:
            return None
        if not isinstance(batch, tuple):
            raise DataError(
                message(
                    "A generator yields tuples: (x,), (x, y) or (x, y, sample_weight).",
                    f"{self.name}: a batch of type {type(batch).__name__}",
                    "yield (x,)   # or: yield x, y",
                )
            )
        return engine.as_host(batch)
