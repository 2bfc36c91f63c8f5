"""What Keras shuffles with: the global random states of NumPy and Python."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np

Drawn = tuple[Any, Any]
"""Both states as their libraries give them: quick to take, see `plain_random`."""


def random_now() -> Drawn:
    """Both states at this moment."""
    return np.random.get_state(legacy=True), random.getstate()


def plain_random(drawn: Drawn) -> list[Any]:
    """States as short plain values, which JSON can say."""
    (kind, keys, *rest), (version, numbers, gauss) = drawn
    return [[kind, _text(keys), *rest], [version, _text(numbers), gauss]]


def random_state() -> list[Any]:
    """Both states at this moment, as plain values."""
    return plain_random(random_now())


def set_random_state(state: list[Any]) -> None:
    """Continue with another's random numbers; see `random_state`."""
    (kind, keys, *rest), (version, numbers, gauss) = state
    np.random.set_state((kind, _numbers(keys), *rest))
    random.setstate((version, tuple(_numbers(numbers).tolist()), gauss))


def check_random_state(state: Any) -> None:
    """Refuse what `set_random_state` cannot take.

    Raises:
        ValueError: It is no such state; or TypeError.
    """
    (kind, keys, *rest), (version, numbers, gauss) = state
    np.random.RandomState().set_state((kind, _numbers(keys), *rest))
    random.Random().setstate((version, tuple(_numbers(numbers).tolist()), gauss))


def same_random(a: Drawn, b: Drawn) -> bool:
    """True if nobody drew a global random number between the two."""
    return np.array_equal(a[0][1], b[0][1]) and a[0][2:] == b[0][2:] and a[1] == b[1]


def _text(numbers: Any) -> str:
    return base64.b64encode(np.asarray(numbers, "<u4").tobytes()).decode("ascii")


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<u4")
