"""Keras's own readers of the user's data."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

from phalanx.engine.keras.found import data_adapter_utils, data_adapters, keras


def adapter(**data: Any) -> Any:
    """Keras's own reader for any kind of input."""
    return data_adapters.get_data_adapter(**data)


def can_shuffle(*data: Any) -> bool:
    """True for arrays and finite PyDatasets, whose order is Keras's to choose."""
    if isinstance(data[0], keras.utils.PyDataset):
        return data[0].num_batches is not None
    return bool(data_adapters.array_data_adapter.can_convert_arrays(data))


def is_spent(x: Any) -> bool:
    """True for a generator that has run to its end."""
    return isinstance(x, types.GeneratorType) and inspect.getgeneratorstate(x) == inspect.GEN_CLOSED


def is_empty_generator(x: Any, error: ValueError) -> bool:
    """True if Keras refused a generator because its first read gave nothing."""
    return isinstance(x, types.GeneratorType) and "empty generator" in str(error)


def host_batches(adapter: Any) -> Iterator[Any]:
    """Batches of an adapter as NumPy (or sparse) arrays, from its start."""
    return iter(adapter.get_jax_iterator())


def is_generator(adapter: Any) -> bool:
    """True for data that can be read only once."""
    return isinstance(adapter, data_adapters.GeneratorDataAdapter)


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
    return data_adapters.array_data_adapter.array_slicing.train_validation_split(
        arrays, validation_split=fraction
    )
