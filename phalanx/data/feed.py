"""Batches placed on the devices, one ahead of their use, in epochs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.data import columns
from phalanx.data.grain_rows import GrainRows
from phalanx.data.pipeline import PipelineSource
from phalanx.data.share import Share
from phalanx.data.source import Source
from phalanx.data.stream import Stream
from phalanx.engine.arrays import Placed, Placement
from phalanx.errors import message, warn


@dataclass(frozen=True)
class Group:
    """The batches of one execution: one, or `steps_per_execution` of them.

    Args:
        first: Index of the first batch in its epoch.
        batches: The placed batches, in order.
    """

    first: int
    batches: tuple[Placed, ...]

    @property
    def last(self) -> int:
        """Index of the last batch in its epoch."""
        return self.first + len(self.batches) - 1


class Feed:
    """Reads, checks and places batches; `prepare` does so for the next group while the devices work.

    Args:
        source: Where host batches come from.
        placement: Where they go.
        steps: Batches per epoch; None reads each epoch to the end of the data.
        group: Batches per execution.
        split: False gives every replica the whole batch (eager steps).
        host_only: Dict keys of columns that stay on the host.
    """

    def __init__(
        self,
        source: Source | Stream | GrainRows | PipelineSource,
        placement: Placement,
        *,
        steps: int | None = None,
        group: int = 1,
        split: bool = True,
        host_only: tuple[str, ...] = (),
    ) -> None:
        self.source, self.placement = source, placement
        self.steps, self.group, self.split, self.host_only = steps, group, split, host_only
        self._known = source.num_batches
        self._warned = False
        self.rewind()

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch, as far as is known."""
        return self.steps or self._known

    def expect(self, batches: int) -> None:
        """Take the word of all workers for the batches of one pass."""
        self._known = batches

    def rewind(self) -> None:
        """Forget the position; the next epoch starts the data anew."""
        self._stream: Iterator[Any] | None = None
        self._seen = 0
        self._ready: Group | None = None

    def restart(self) -> None:
        """End the look at the data and start anew; like Keras, tell the data so also if nobody looked."""
        self.source.end()
        self.rewind()

    def peek(self) -> Any:
        """A host batch like those to come, for its shapes; `restart` afterwards."""
        batch, _ = columns.take_host_only(self.source.peek(), self.host_only)
        if batch is not None:
            columns.count_rows(batch, f"{self.source.name}, batch 0")
        return batch

    def epoch(self) -> Iterator[Group]:
        """Yield the groups of one epoch, in order."""
        self.source.begin()
        if self._stream is None or self.steps is None:
            self._stream, self._seen = self.source.batches(), 0
        self._step, self._ended = 0, False
        try:
            self.prepare()
            while self._ready is not None:
                group, self._ready = self._ready, None
                yield group
                self.prepare()
        finally:
            self._ready = None
            if self._known is not None and self._seen >= self._known:
                self._stream = None
            self.source.end()

    def prepare(self) -> None:
        """Read and place the next group, unless it is ready or the epoch is over."""
        if self._ready is not None or self._ended:
            return
        first = self._step
        placed: list[Placed] = []
        while len(placed) < self.group and not self._ended:
            batch = self._read()
            if batch is not None:
                placed.append(self._place(batch))
        if placed:
            self._ready = Group(first, tuple(placed))

    def _read(self) -> Any:
        """The next host batch of this epoch; None, and `_ended`, when there is none."""
        limit = self.num_batches
        if limit is not None and self._step >= limit:
            self._ended = True
            return None
        if self.steps and self._known is not None and self._seen >= self._known:
            return self._ran_out()
        batch = next(self._stream, None) if self._stream is not None else None
        if batch is None:
            if self._known is None and not self.source.one_shot:
                self._known = self._seen
            self._stream = None
            return self._ran_out() if self.steps else self._stop()
        self._step += 1
        self._seen += 1
        return batch

    def _stop(self) -> None:
        self._ended = True

    def _ran_out(self) -> None:
        self._ended = True
        if not self._warned:
            self._warned = True
            warn(
                message(
                    "An epoch of `steps_per_epoch` batches needs that many batches; this one ends early.",
                    f"{self.source.name}: {self._step} of {self.steps} steps, then the data ended",
                    "data = data.repeat()   # or leave steps_per_epoch out",
                )
            )

    def _place(self, batch: Any) -> Placed:
        where = f"{self.source.name}, batch {self._step - 1}"
        copy = self.source.reuses_memory
        if isinstance(batch, Share):
            mine, host = columns.take_host_only(batch.batch, self.host_only)
            columns.count_rows(mine, where, least=0)
            sizes = batch.sizes if self.split else None
            placed = self.placement.place(
                mine, batch.rows, split=self.split, copy=copy, sizes=sizes, own=True
            )
        else:
            batch, host = columns.take_host_only(batch, self.host_only)
            rows = columns.count_rows(batch, where)
            placed = self.placement.place(batch, rows, split=self.split, copy=copy)
        return dataclasses.replace(placed, host=host) if host else placed
