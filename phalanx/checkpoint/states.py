"""States of callbacks and the like as JSON and arrays: what a backup may hold, and nothing that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phalanx.errors import CheckpointError, message

_MARK = "$"  # a dict with this key alone stands for what JSON cannot say


class Packed:
    """Arrays that were met on the way, each under a key of its own.

    Args:
        part: Whose they are: the first half of each key.

    Example:
        >>> packed = Packed("callbacks")
        >>> packed.pack({"best": 0.5, "weights": [np.zeros(3)]}, "EarlyStopping")
        {'best': 0.5, 'weights': [{'$': ['array', 'callbacks.0']}]}
        >>> unpack({"weights": [{"$": ["array", "callbacks.0"]}]}, packed.arrays)
        {'weights': [array([0., 0., 0.])]}
    """

    def __init__(self, part: str) -> None:
        self.part = part
        self.arrays: dict[str, np.ndarray] = {}
        self.paths: dict[str, str] = {}

    def pack(self, state: Any, path: str) -> Any:
        """A state as plain values; arrays are copied.

        Args:
            state: Numbers, texts, None, arrays, and lists, tuples and dicts of them.
            path: What it belongs to, for texts.

        Raises:
            CheckpointError: It holds something else.
        """
        if state is None or (
            isinstance(state, (bool, int, float, str)) and not isinstance(state, np.generic)
        ):
            return state
        if isinstance(state, list):
            return [self.pack(each, f"{path}/{i}") for i, each in enumerate(state)]
        if isinstance(state, tuple):
            return {_MARK: ["tuple", self.pack(list(state), path)]}
        if isinstance(state, dict):
            if all(isinstance(key, str) for key in state) and _MARK not in state:
                return {key: self.pack(each, f"{path}/{key}") for key, each in state.items()}
            return {_MARK: ["dict", self.pack([list(pair) for pair in state.items()], path)]}
        if isinstance(state, np.str_):
            return str(state)
        if hasattr(state, "__array__") and hasattr(state, "dtype") and _is_number(state.dtype):
            key = f"{self.part}.{len(self.arrays)}"
            self.arrays[key] = np.array(state)
            self.paths[key] = path
            return {_MARK: ["scalar" if isinstance(state, np.generic) else "array", key]}
        kind = f" of dtype {state.dtype}" if hasattr(state, "dtype") else ""
        raise CheckpointError(
            message(
                "A state is made of numbers, texts, lists, dicts, and arrays of numbers.",
                f"{path}: {type(state).__module__}.{type(state).__qualname__}{kind}",
                "def get_state(self): return {'best': float(self.best)}",
            )
        )


def _is_number(dtype: Any) -> bool:
    """True for booleans and numbers, those of 16 and 8 bits included, which NumPy knows as opaque bytes."""
    dtype = np.dtype(dtype)
    opaque = dtype.kind == "V" and dtype.fields is None and not dtype.name.startswith("void")
    return dtype.kind in "biufc" or opaque


def unpack(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The state that `Packed.pack` took apart, all of it new.

    Raises:
        ValueError: Plain values that it never makes.
    """
    if isinstance(plain, list):
        return [unpack(each, arrays) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if _MARK not in plain:
        return {key: unpack(each, arrays) for key, each in plain.items()}
    kind, value = plain[_MARK]
    if kind == "array":
        return arrays[value].copy()
    if kind == "scalar":
        return arrays[value][()]
    if kind == "tuple":
        return tuple(unpack(value, arrays))
    if kind == "dict":
        return {unpack(key, arrays): unpack(each, arrays) for key, each in value}
    raise ValueError(f"a state of kind {kind!r}")
