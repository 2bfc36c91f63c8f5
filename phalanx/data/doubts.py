"""Whether data comes again as it came before: what resuming a run to the bit rests on."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any


def doubt(data: Any) -> str | None:
    """Why a new process may not be given the same batches again; None where nothing speaks against it.

    Args:
        data: What the user gave to `fit`.

    Example:
        >>> doubt([1.0, 2.0]) is None
        True
        >>> doubt(number for number in range(3))
        'a generator gives what its own code makes of it; it must yield the same batches in a new process'
    """
    if isinstance(data, types.GeneratorType):
        return (
            "a generator gives what its own code makes of it; it must yield the same batches in a new process"
        )
    return _doubt_of_tf_data(data) or _doubt_of_loader(data) or _doubt_of_py_dataset(data)


def _doubt_of_tf_data(data: Any) -> str | None:
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "data") or not isinstance(data, tf.data.Dataset):
        return None
    for each in _with_inputs(data):
        seeds = [getattr(each, name, None) for name in ("_seed", "_seed2")]
        if "Shuffle" in type(each).__name__ and all(seed is not None and int(seed) == 0 for seed in seeds):
            return "its shuffle has no seed, so that the order is another one in each process"
        if each.options().deterministic is False:
            return "its options say deterministic = False"
    return None


def _with_inputs(data: Any) -> Iterator[Any]:
    yield data
    for each in data._inputs():
        yield from _with_inputs(each)


def _doubt_of_loader(data: Any) -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(data, torch.utils.data.DataLoader):
        return None
    sampler = getattr(data, "sampler", None)
    if getattr(sampler, "generator", "none of its own") is None:  # all of torch's samplers that draw have one
        return "its shuffling draws from torch's global state, which no backup holds"
    return None


def _doubt_of_py_dataset(data: Any) -> str | None:
    if getattr(data, "workers", 0) and hasattr(data, "num_batches") and data.num_batches is None:
        more = data.workers > 1 or getattr(data, "use_multiprocessing", False)
        return "it has no end, and its workers read ahead of the training" if more else None
    return None
