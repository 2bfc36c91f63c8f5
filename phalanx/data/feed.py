"""Batches placed on the devices, one ahead of their use, in epochs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.data import columns
from phalanx.data.grain_rows import GrainRows
from phalanx.data.pipeline import PipelineSource
from phalanx.data.position import Position, fingerprint
from phalanx.data.share import Share
from phalanx.data.source import Source
from phalanx.data.stream import Stream
from phalanx.engine import keras as engine
from phalanx.engine.arrays import Placed, Placement
from phalanx.errors import DataError, message, warn


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

    Attributes:
        followed: True from the moment on at which somebody wants to know its `position`.
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
        self._warned = self._resumed = self.followed = False
        self._hooks, self._reads = 0, list[int]()
        self._drawn: list[Any] = []
        self._opened: engine.Drawn | None = None
        self._ahead: engine.Drawn | None = None
        self._first: int | None = None
        self._step, self._ended = 0, False
        self.rewind()

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch, as far as is known."""
        return self.steps or self._known

    @property
    def _rows(self) -> dict[str, int]:
        alike = self.source.alike
        return {name: alike[name] for name in ("rows", "rows of a batch") if name in alike}

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
        if self._resumed:
            self._resumed = False
        else:
            self._hook(self.source.begin)
            if self._stream is None or self.steps is None:
                self._open()
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
            self._hook(self.source.end)

    def position(self) -> Position:
        """Where the training stands in the data: after the last group that was yielded."""
        ahead = 0 if self._ready is None else len(self._ready.batches)
        reads = [*self._reads[:-1], *(each - ahead for each in self._reads[-1:])]
        return Position(
            hooks=self._hooks,
            drawn=self._drawn,
            reads=reads,
            open=self._stream is not None,
            step=self._step - ahead,
            ended=self._ended and not ahead,
            known=self._known,
            warned=self._warned,
            opened=None if self._opened is None else engine.plain_random(self._opened),
            ahead=engine.plain_random(self._ahead) if ahead and self._ahead else None,
            first=self._first,
            alike=self._rows,
        )

    def check(self, at: Position) -> None:
        """Refuse to go on within an epoch of other batches.

        Raises:
            DataError: With the numbers of then and now.
        """
        own = self.source.num_batches
        here, then = ({"batches in a pass": own} | self._rows), ({"batches in a pass": at.known} | at.alike)
        odd = [name for name in here if own is not None and here[name] != then.get(name)]
        if odd and (at.open or at.hooks % 2):
            raise DataError(
                message(
                    "An epoch that was begun goes on with the same global batches.",
                    f"{self.source.name}: "
                    + ", ".join(
                        f"{here[name]} {name} ({then.get(name)} when it was backed up)" for name in odd
                    ),
                    "fit(x, y, batch_size=...)   # as before; or remove the backups, to start anew",
                )
            )

    def resume(self, at: Position) -> int:
        """Go to a position, in a feed that nobody has read from; the next epoch is the rest of that one.

        Global random numbers are drawn on the way: set their state afterwards.

        Returns:
            Batches that were read to get there.
        """
        own = self.source.num_batches
        states = dict(map(tuple, at.drawn))
        for number in range(at.hooks):
            if number in states:
                engine.set_random_state(states[number])
            (self.source.end if number % 2 else self.source.begin)()
        self._hooks, self._drawn, self._reads = at.hooks, list(at.drawn), list(at.reads)
        self._known, self._warned = at.known if own is None else own, at.warned
        self._step, self._ended, self._seen = at.step, at.ended, at.reads[-1] if at.reads else 0
        self._resumed = at.hooks % 2 == 1
        if at.opened is not None:
            engine.set_random_state(at.opened)
            self._opened = engine.random_now()
        replayed = 0
        if isinstance(self.source, (Stream, PipelineSource)) or not self.source.skips:
            replayed = self._replay(at)
        elif at.open:
            self._stream = self.source.later(self._seen) if self._seen else self.source.batches()
        if at.ahead is not None:
            engine.set_random_state(at.ahead)
        if self._resumed:
            self.prepare()
        return replayed

    def _replay(self, at: Position) -> int:
        """Read again all that was read; a stream that was open goes on afterwards."""
        stream: Iterator[Any] | None = None
        for count in at.reads:
            stream = self.source.batches()
            for number in range(count):
                batch = next(stream, None)
                if batch is None:
                    self._say_other(f"it ends after {number} batches, {count} were trained on")
                    break
                if self._first is None:
                    self._first = self._print_of(batch)
                    if at.first not in (None, self._first):
                        self._say_other("its first batch has other values than it had")
        self._stream = stream if at.open else None
        return at.total

    def _say_other(self, how: str) -> None:
        warn(
            message(
                "A run goes on exactly with the data that it began with, in the same order.",
                f"{self.source.name}: {how}; training goes on with what comes",
                "data.shuffle(10_000, seed=1)   # a seed for all that shuffles",
            )
        )

    def _open(self) -> None:
        self._stream, self._seen = self.source.batches(), 0
        self._reads.append(0)
        self._opened = engine.random_now() if self.followed else None

    def _hook(self, call: Callable[[], None]) -> None:
        """Tell the data that an epoch begins or ends, and note what it drew."""
        before = engine.random_now() if self.followed else None
        call()
        if before is not None and not engine.same_random(before, engine.random_now()):
            self._drawn.append([self._hooks, engine.plain_random(before)])
        self._hooks += 1

    def prepare(self) -> None:
        """Read and place the next group, unless it is ready or the epoch is over."""
        if self._ready is not None or self._ended:
            return
        first = self._step
        self._ahead = engine.random_now() if self.followed and self.source.draws else None
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
        if self.followed and self._first is None and not self.source.skips:
            self._first = self._print_of(batch)
        self._step += 1
        self._seen += 1
        self._reads[-1] += 1
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

    def _print_of(self, batch: Any) -> int:
        """What tells another order; each worker's own pipeline has another anyway."""
        return 0 if isinstance(self.source, PipelineSource) else fingerprint(batch)
