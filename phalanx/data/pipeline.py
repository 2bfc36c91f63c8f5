"""A pipeline of each worker's own, read in step with those of the others until the last one ends."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from phalanx.data import columns
from phalanx.data.input_context import InputContext
from phalanx.data.sharding import Sharding
from phalanx.data.share import Share, like_whole, without_rows
from phalanx.errors import DataError, UnsupportedError, message
from phalanx.rows import has_rows, is_sparse

_AHEAD = 8
"""Steps that are read before the workers tell each other how many rows they have for them."""

Tell = Callable[[str, str], list[str]]
"""`(what it is about, this worker's text) -> every worker's text, in worker order`."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """What `strategy.distribute_datasets_from_function` returns: the data of `fit`, `evaluate` and `predict`.

    Args:
        data: What the user's function returned; each of its batches is one replica's part of a step.
        context: What the function was told.
        replicas: Model copies of this worker: so many batches are one step.
        tell: Where the workers tell each other how many rows they have; None for one worker.
    """

    data: Any
    context: InputContext
    replicas: int
    tell: Tell | None = None

    def __repr__(self) -> str:
        place = f"{self.context.input_pipeline_id} of {self.context.num_input_pipelines}"
        return f"<Pipeline {place}: {type(self.data).__name__}>"


class PipelineSource:
    """A source of this worker's part of each step; workers that are out of data bring no rows.

    The rows of a step are those of the first replica, then of the second, and so on over all workers.

    Args:
        pipeline: The user's.
        source: The reader of its data.
        host_only: Dict keys of columns that stay on the host.
        sharding: Which worker reads what, and why.
    """

    reuses_memory = False
    lacks_targets = False
    skips = False
    draws = True

    def __init__(
        self, pipeline: Pipeline, source: Any, host_only: tuple[str, ...], sharding: Sharding
    ) -> None:
        self.pipeline, self.source, self.host_only, self.sharding = pipeline, source, host_only, sharding
        self.name, self.one_shot, self.doubt = source.name, source.one_shot, source.doubt
        self.alike = {"pipelines": pipeline.context.num_input_pipelines}
        self.num_batches = None if pipeline.tell else self.own_batches
        self._empty: Any = None  # a batch without rows, for when this worker is out of data
        self._compared = False

    @property
    def own_batches(self) -> int | None:
        """Steps for which this worker has rows, or None where only reading can tell."""
        known = self.source.num_batches
        return None if known is None else -(-known // self.pipeline.replicas)

    def begin(self) -> None:
        """Tell the user's data that an epoch begins."""
        self.source.begin()

    def end(self) -> None:
        """Tell the user's data that an epoch ended."""
        self.source.end()

    def peek(self) -> Any:
        """A batch like the whole of the first step, for its shapes; None if there is none."""
        batch = None if self.source.num_batches == 0 else self.source.peek()
        if batch is None:
            return None
        rows = self._rows(batch) * self.pipeline.context.num_replicas_in_sync
        numbers, host = columns.take_host_only(batch, self.host_only)
        return like_whole(numbers, rows) if not host else batch

    def batches(self) -> Iterator[Share]:
        """Read from the start: this worker's share of each step, as long as any worker has rows."""
        steps = self._steps()
        while True:
            block = list(itertools.islice(steps, _AHEAD))
            if block and self.pipeline.tell is not None:
                self._empty = without_rows(block[0][0])
            sizes = self._agreed(block)
            for number, each in enumerate(sizes):
                mine = self._joined(block[number]) if number < len(block) else self._empty
                yield Share(mine, sum(each), each)
            if len(sizes) < _AHEAD:
                return

    def _steps(self) -> Iterator[list[Any]]:
        """For each step one batch for each replica of this worker, fewer where the data ends."""
        batches = self.source.batches()
        if self.source.reuses_memory:
            batches = (jax.tree.map(_copied, batch, is_leaf=is_sparse) for batch in batches)
        while part := list(itertools.islice(batches, self.pipeline.replicas)):
            yield part

    def _rows(self, batch: Any) -> int:
        numbers, _ = columns.take_host_only(batch, self.host_only)
        if self.pipeline.context.num_replicas_in_sync > 1:
            _check_dense(self.name, numbers)
        return columns.count_rows(numbers, f"{self.name}, a batch of worker {self._worker}'s pipeline")

    @property
    def _worker(self) -> int:
        return self.pipeline.context.input_pipeline_id

    def _agreed(self, block: list[list[Any]]) -> list[tuple[int, ...]]:
        """Rows of every replica of all workers for the coming steps; no step where nobody has any.

        Raises:
            DataError: On all workers: one has no batch at all, or other columns than the rest.
        """
        replicas = self.pipeline.replicas
        mine = [[self._rows(batch) for batch in step] for step in block]
        mine = [rows + [0] * (replicas - len(rows)) for rows in mine]
        if self.pipeline.tell is None:
            return [tuple(rows) for rows in mine]
        kind = None if self._empty is None else self._columns(self._empty)
        said = self.pipeline.tell(f"the next rows of {self.name}", json.dumps([mine, kind]))
        every = [json.loads(text) for text in said]
        if not self._compared:
            self._compared = True
            _check_alike(self.name, [kind for _, kind in every])
        count = max(len(rows) for rows, _ in every)
        nothing = [0] * replicas
        return [
            tuple(size for rows, _ in every for size in (rows[step] if step < len(rows) else nothing))
            for step in range(count)
        ]

    def _columns(self, batch: Any) -> list[str]:
        """Names, shapes of a row and dtypes of a batch's columns."""
        numbers, _ = columns.take_host_only(batch, self.host_only)
        return [f"{name} {tuple(each.shape[1:])} {each.dtype}" for name, each in columns.named(numbers)]

    def _joined(self, parts: list[Any]) -> Any:
        """The batches of this worker's replicas as one, rows in their order."""
        if len(parts) == 1:
            return parts[0]

        return jax.tree.map(
            lambda *column: np.concatenate(column) if has_rows(column[0]) else column[0], *parts
        )


def _check_dense(name: str, batch: Any) -> None:
    sparse = next((each for each in jax.tree.leaves(batch, is_leaf=is_sparse) if is_sparse(each)), None)
    if sparse is not None:
        raise UnsupportedError(
            message(
                "Pipelines for several replicas yield dense columns.",
                f"{name}: a sparse column of shape {sparse.shape}",
                "dataset = dataset.map(to_dense)   # or fit(x, y) with whole arrays",
            )
        )


def _copied(column: Any) -> Any:
    return np.array(column) if has_rows(column) else column


def _check_alike(name: str, kinds: list[list[str] | None]) -> None:
    without = [worker for worker, kind in enumerate(kinds) if kind is None]
    if without and len(without) < len(kinds):
        raise DataError(
            message(
                "Every worker's pipeline yields at least one batch.",
                f"{name}: worker {without[0]} has none",
                "files[context.input_pipeline_id :: context.num_input_pipelines]   # enough files?",
            )
        )
    first, odd = next(((kinds[0], kind) for kind in kinds if kind != kinds[0]), (None, None))
    if first is not None and odd is not None:
        raise DataError(
            message(
                "Every worker's pipeline yields the same columns.",
                f"{name}: worker 0 has {'; '.join(first)}, worker {kinds.index(odd)} has {'; '.join(odd)}",
                "print(dataset.element_spec)   # on both",
            )
        )
