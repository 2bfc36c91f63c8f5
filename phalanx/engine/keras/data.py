"""Keras's own readers of the user's data."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

from phalanx.engine.keras.found import data_adapter_utils, data_adapters, keras

_PyDatasetAdapter = data_adapters.PyDatasetAdapter
array_slicing = data_adapters.array_data_adapter.array_slicing


def adapter(**data: Any) -> Any:
    """Keras's own reader for any kind of input."""
    made = data_adapters.get_data_adapter(**data)
    if isinstance(made, _PyDatasetAdapter) and made.num_batches is not None:
        made.enqueuer = None  # keeps what it read ahead for the next epoch, out of order: `_queued` does not
    return made


def check_generator(**data: Any) -> None:
    """Refuse what Keras does not take beside a generator, with Keras's own words."""
    data_adapters.get_data_adapter(**(data | {"x": (batch for batch in [(0,)])}))


def can_shuffle(*data: Any) -> bool:
    """True for arrays and finite PyDatasets, whose order is Keras's to choose."""
    if isinstance(data[0], keras.utils.PyDataset):
        return data[0].num_batches is not None
    return bool(data_adapters.array_data_adapter.can_convert_arrays(data))


def is_spent(x: Any) -> bool:
    """True for a generator that has run to its end."""
    return isinstance(x, types.GeneratorType) and inspect.getgeneratorstate(x) == inspect.GEN_CLOSED


def is_generator(x: Any) -> bool:
    """True for data that can be read only once, by the user's own code."""
    return isinstance(x, types.GeneratorType)


def host_batches(adapter: Any) -> Iterator[Any]:
    """Batches of an adapter as NumPy (or sparse) arrays, from its start."""
    if isinstance(adapter, _PyDatasetAdapter) and adapter.num_batches is not None:
        data = adapter.py_dataset
        if data.workers > 1 or (data.workers > 0 and data.use_multiprocessing):
            return data_adapter_utils.get_jax_iterator(_queued(adapter))
    return iter(adapter.get_jax_iterator())


def skips(adapter: Any) -> bool:
    """True if a pass can begin at any batch, without reading those before it; see `later_batches`."""
    if isinstance(adapter, _PyDatasetAdapter):
        data = adapter.py_dataset
        return data.num_batches is not None or adapter.enqueuer is None
    return is_array(adapter)


def later_batches(adapter: Any, skip: int) -> Iterator[Any]:
    """The batches of a pass after the first `skip`, in the order that the pass would have had.

    The order is drawn now, from the global random state, and not when the first batch is asked for.

    Args:
        adapter: A reader for which `skips` is true.
        skip: Batches that are not read, 1 or more.
    """
    if is_array(adapter):
        return (batch for batch, _ in own_batches(adapter, lambda rows: (0, rows), skip))
    data, total = adapter.py_dataset, adapter.py_dataset.num_batches
    if total is None:
        batches = (adapter._standardize_batch(data[i]) for i in itertools.count(skip))
        return iter(data_adapter_utils.get_jax_iterator(batches))
    order = list(range(total))
    if adapter.shuffle:
        random.shuffle(order)  # as Keras does, in its own thread or ours
    rest = copy.copy(adapter)
    rest.py_dataset, rest.shuffle = _Part(data, order[skip:]), False
    return host_batches(rest)


class _Part(keras.utils.PyDataset):
    """Some batches of a PyDataset, in a given order."""

    def __init__(self, data: Any, order: list[int]) -> None:
        super().__init__(data.workers, data.use_multiprocessing, data.max_queue_size)
        self.data, self.order = data, order

    def __getitem__(self, number: int) -> Any:
        return self.data[self.order[number]]

    def __len__(self) -> int:
        return len(self.order)


def own_batches(
    adapter: Any, own: Callable[[int], tuple[int, int]], skip: int = 0
) -> Iterator[tuple[Any, int]]:
    """Batches of an array adapter of which only some rows are read, with the rows of each whole batch.

    Args:
        adapter: A reader for which `is_array` is true; its order of rows stays what it is.
        own: Rows of a batch -> the `(start, stop)` of them that are read.
        skip: Batches of the pass that are left out, unread; its order is then drawn at once.
    """
    columns = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="jax")
    skipping = skip > 0

    def read(column: Any, indices: Any) -> Any:
        if skipping:
            return None
        listed = not isinstance(indices, slice)
        start, stop = own(len(indices) if listed else indices.stop - indices.start)
        part = indices[start:stop] if listed else slice(indices.start + start, indices.start + stop)
        return column.convert_to_jax_compatible(column[part])

    size, total = adapter.batch_size, adapter._num_samples
    numbered = enumerate(adapter._get_iterator(read, columns))
    for _ in range(skip):
        next(numbered)
    skipping = False
    return ((batch, min(size, total - number * size)) for number, batch in numbered)


def size_of(adapter: Any) -> dict[str, int]:
    """Rows of all arrays and of one batch, by name; empty for data that only reading can count."""
    if not is_array(adapter):
        return {}
    return {"rows": int(adapter._num_samples), "rows of a batch": int(adapter.batch_size)}


def first_batch(adapter: Any) -> Any:
    """The first batch as NumPy (or sparse) arrays, without workers that read ahead; None if there is none."""
    if isinstance(adapter, _PyDatasetAdapter):
        return as_host(adapter._standardize_batch(adapter.py_dataset[0]))
    return next(host_batches(adapter), None)


def _queued(adapter: Any) -> Iterator[Any]:
    """One pass through a PyDataset that is read by workers; what they read ahead ends with it."""
    data = adapter.py_dataset
    queue = data_adapters.py_dataset_adapter.OrderedEnqueuer(
        data, data.workers, data.use_multiprocessing, data.max_queue_size, adapter.shuffle
    )
    queue.start()
    try:
        for _ in range(adapter.num_batches):
            future = queue.future_queue.get()  # an error of the queue's own thread comes through here, too
            queue.future_queue.task_done()
            if isinstance(future, Exception):
                raise future
            yield adapter._standardize_batch(future.get())  # Keras's own `get` skips None and waits for ever
    finally:
        with contextlib.suppress(Exception):  # of batches that nobody asked for
            queue.stop()


def is_array(adapter: Any) -> bool:
    """True for data whose rows Keras slices itself."""
    return isinstance(adapter, data_adapters.ArrayDataAdapter)


def as_host(batch: Any) -> Any:
    """A batch of arrays, lists of numbers or frames as arrays that can be placed."""
    return next(data_adapter_utils.get_jax_iterator([batch]))


def unpack(batch: Any) -> tuple[Any, Any, Any]:
    """A batch as `(x, y, sample_weight)`, with None for what is missing."""
    return data_adapter_utils.unpack_x_y_sample_weight(batch)


def class_weights(y: Any, weights: dict[int, float]) -> Any:
    """Weights per row from weights per class."""
    return data_adapter_utils.class_weight_to_sample_weights(y, weights)


def split_validation(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """Cut the last `fraction` of the rows off as validation data."""
    return array_slicing.train_validation_split(arrays, validation_split=fraction)
