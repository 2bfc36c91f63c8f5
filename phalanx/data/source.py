"""The user's data as a sequence of host batches, read by Keras's own adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx.data import columns, doubts, grain_rows, sharding
from phalanx.data.grain_rows import GrainRows
from phalanx.data.pipeline import Pipeline, PipelineSource
from phalanx.data.sharding import Sharding
from phalanx.data.share import Own, Share, like_whole
from phalanx.data.stream import Stream
from phalanx.engine import keras as engine
from phalanx.errors import DataError, message


class Source:
    """Host batches of any input that Keras can read from its start again and again.

    Args:
        adapter: Keras's data adapter for the user's object.
        name: What the user calls the data, for texts.
        host: Columns that stay on the host, whole, where the adapter was given their row numbers instead.
        own: Which rows of a batch this worker takes, where it reads no others; None reads all.

    Attributes:
        is_array: True for data whose rows can be read in any order.
        lacks_targets: True for arrays of features alone.
        rows: What a row of the user's arrays is, by their names; empty for other kinds.
        alike: What must be the same on all workers, by name.
        sharding: Which worker reads what, and why.
        skips: A pass can begin at any batch; see `later`.
        draws: Reading a batch may draw global random numbers, by the user's own code.
        doubt: Why a run on this data may not resume to the bit; None where it does.
    """

    one_shot = False
    sharding: Sharding

    def __init__(
        self, adapter: Any, name: str, host: dict[str, Any] | None = None, own: Own | None = None
    ) -> None:
        self.adapter, self.name, self._own = adapter, name, own
        self.is_array = engine.is_array(adapter)
        self.reuses_memory = not self.is_array
        self._host = host or {}
        self.lacks_targets = False
        self.rows: dict[str, str | None] = {}
        self.skips = engine.skips(adapter)
        self.draws = not self.is_array
        self.doubt: str | None = None
        self.alike = engine.size_of(adapter)

    @property
    def num_batches(self) -> int | None:
        """Batches of one pass, or None where only reading can tell."""
        return self.adapter.num_batches

    def begin(self) -> None:
        """Tell the user's data that an epoch begins."""
        self.adapter.on_epoch_begin()

    def end(self) -> None:
        """Tell the user's data that an epoch ended."""
        self.adapter.on_epoch_end()

    def peek(self) -> Any:
        """The first batch, for its shapes; None if there is none."""
        self.begin()
        if self._own is not None:
            batch, rows = next(engine.own_batches(self.adapter, lambda rows: (0, 1)))
            return like_whole(batch, rows)
        return columns.look_up(engine.first_batch(self.adapter), self._host)

    def batches(self) -> Iterator[Any]:
        """Read from the start: host batches, or this worker's `Share` of each."""
        if self._own is not None:
            return (Share(*each) for each in engine.own_batches(self.adapter, self._own))
        return self._looked_up(engine.host_batches(self.adapter))

    def later(self, skip: int) -> Iterator[Any]:
        """Like `batches`, without the first `skip`, 1 or more, which are not read; the order is drawn now."""
        if self._own is not None:
            return (Share(*each) for each in engine.own_batches(self.adapter, self._own, skip))
        return self._looked_up(engine.later_batches(self.adapter, skip))

    def _looked_up(self, batches: Iterator[Any]) -> Iterator[Any]:
        return (columns.look_up(batch, self._host) for batch in batches) if self._host else batches


def open_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    name: str,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str | None = False,
    class_weight: dict[int, float] | None = None,
    host_only: tuple[str, ...] = (),
    host: dict[str, Any] | None = None,
    workers: int = 1,
    own: Own | None = None,
    least: int = 1,
) -> Source | Stream | GrainRows | PipelineSource:
    """Choose the reader for the user's data, after a look at what can be seen without reading.

    Args:
        x: Arrays (NumPy, jax, pandas) or a tree of them, PyDataset, generator, tf.data, torch DataLoader,
            grain, or the `Pipeline` of each worker's own.
        y: Targets, where x holds features alone.
        sample_weight: Weight per row, likewise.
        name: What the user calls the data, for texts.
        batch_size: Rows of a global batch, for arrays.
        steps: Steps per epoch, if given.
        shuffle: As in Keras's `fit`; None shuffles arrays and PyDatasets and leaves the rest as it comes.
        class_weight: Weight per class, as in Keras's `fit`.
        host_only: Dict keys of columns that stay on the host.
        host: Those columns, where their place in the data has been taken by `columns.number_rows`.
        workers: Host programs that train together.
        own: Which rows of a batch this one takes.
        least: 0 where data without a batch is in order.

    Returns:
        A source of global batches, or of this worker's rows of them; `sharding` says which, and why.

    Raises:
        DataError: No data, no rows, or columns of different lengths.
        ColumnError: A column of strings or objects.
    """
    if x is None:
        raise DataError(
            message("Training, evaluation and prediction need data.", f"{name}: x=None", "fit(x, y)")
        )
    if batch_size is not None and not _is_count(batch_size):
        raise DataError(
            message(
                "batch_size is the global batch: a whole number of rows, 1 or more.",
                f"batch_size={batch_size!r}",
                "fit(x, y, batch_size=64)",
            )
        )
    if steps is not None and not _is_count(steps):
        raise DataError(
            message(
                "A number of steps is a whole number, 1 or more; None reads the data to its end.",
                f"{name}: steps={steps!r}",
                f"fit(data, {_STEPS_OPTION.get(name, 'steps')}=100)",
            )
        )
    if isinstance(x, Pipeline):
        return _open_pipeline(
            x, y, sample_weight, name=name, shuffle=shuffle, class_weight=class_weight, host_only=host_only
        )
    _check_arrays(columns.take_host_only((x, y, sample_weight), host_only)[0], name)
    shuffle = engine.can_shuffle(x, y, sample_weight) if shuffle is None else shuffle
    options = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight, "shuffle": shuffle}
    if engine.is_generator(x):
        engine.check_generator(**options)
        stream = Stream(x, name)
        if stream.peek() is None and least:
            raise _no_batch(name)
        stream.sharding = sharding.decide("a generator", workers)
        stream.doubt = doubts.doubt(x)
        return stream
    if workers > 1 and own is not None and not host_only and (rows := grain_rows.find(x)) is not None:
        return GrainRows(rows, name, own, sharding.decide("rows", workers))
    if host is None:
        (x, options["y"], options["sample_weight"]), host = columns.number_rows(
            (x, y, sample_weight), host_only
        )
    adapter = engine.adapter(x=x, batch_size=batch_size, steps_per_epoch=steps, **options)
    kind = "arrays" if engine.is_array(adapter) else f"a {type(x).__name__}"
    chosen = sharding.decide(kind, workers, host_only=bool(host))
    source = Source(adapter, name, host, own if chosen.policy == "data" else None)
    source.sharding, source.doubt = chosen, doubts.doubt(x)
    if source.is_array:
        source.lacks_targets = y is None
        source.rows = columns.row_shapes((x, y, sample_weight))
    if source.num_batches == 0 and least:
        raise DataError(
            message(
                "Data has at least one batch.", f"{name} has 0 batches", "print(len(data))   # then fit(data)"
            )
        )
    return source


def _open_pipeline(
    pipeline: Pipeline, *data: Any, name: str, host_only: tuple[str, ...], **options: Any
) -> PipelineSource:
    several = pipeline.tell is not None  # then all are told together of one that has no batch
    source = open_source(
        pipeline.data, *data, name=name, host_only=host_only, least=0 if several else 1, **options
    )
    if isinstance(source, Source) and engine.is_array(source.adapter):
        raise DataError(
            message(
                "A worker's pipeline yields the batches of its replicas: a dataset, PyDataset or generator.",
                f"{name}: the function returned {type(pipeline.data).__name__}, whole arrays",
                "return tf.data.Dataset.from_tensor_slices((x, y)).batch(rows)   # or fit(x, y) without it",
            )
        )
    return PipelineSource(pipeline, source, host_only, sharding.decide("pipelines", 1))


_STEPS_OPTION = {"training data": "steps_per_epoch", "validation data": "validation_steps"}


def _no_batch(name: str) -> DataError:
    return DataError(
        message(
            "A generator yields at least one batch, and it can be read only once.",
            f"{name}: the generator has no batch left",
            "fit(make_generator())   # a new one, or a PyDataset",
        )
    )


def _is_count(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, np.integer)) and int(value) >= 1


def _are_pairs(rows: list[Any]) -> bool:
    return all(isinstance(each, tuple) and len(each) in (2, 3) for each in rows)


def _check_arrays(data: tuple[Any, Any, Any], name: str) -> None:
    """Check arrays whole, before a byte is read; other kinds show themselves batch by batch."""
    if isinstance(data[0], list) and data[1] is None and data[0] and _are_pairs(data[0]):
        raise DataError(
            message(
                "Rows come as arrays, features and targets apart; a list is a list of input columns.",
                f"{name}: a list of {len(data[0])} pairs",
                "x, y = (np.stack(part) for part in zip(*pairs)); fit(x, y)",
            )
        )
    for path, column in columns.named(data):
        if isinstance(column, (list, tuple, str, bytes)):
            columns.check_numeric(path, column)
    found = [(path, column) for path, column in columns.named(data) if hasattr(column, "shape")]
    if not found or len(found) != sum(1 for _ in columns.named(data)):
        return
    for path, column in found:
        columns.check_numeric(path, column)
        if not column.shape:
            raise DataError(
                message(
                    "Data has rows: its first dim counts them.",
                    f"{name}: {path} is a single number",
                    f"{path} = np.asarray({path}).reshape(1, 1)   # one row of one number",
                )
            )
    rows = {path: int(column.shape[0]) for path, column in found if len(column.shape)}
    if len(set(rows.values())) > 1:
        raise DataError(
            message(
                "All columns have the same number of rows.",
                f"{name}: " + ", ".join(f"{path} has {n}" for path, n in rows.items()),
                f"n = {min(rows.values())}; fit(x[:n], y[:n])",
            )
        )
    if 0 in rows.values():
        raise DataError(
            message("Data has at least one row.", f"{name}: {next(iter(rows))} has 0 rows", "print(len(x))")
        )
