"""Dropout over a part of a batch, with the masks that one device draws for the whole of it.

JAX counts the elements of a random array, row after row, and hashes each one's number with the key
(Salmon et al. 2011). A part of the rows has the same numbers, counted from where it begins.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import random as jax_random

from phalanx.engine.keras.found import keras_random

_HALF = 0xFFFF  # the lower 16 bits
_part: ContextVar[tuple[Any, int] | None] = ContextVar("part", default=None)


def drawn_alike() -> bool:
    """True if JAX draws a part of an array as it draws the whole; its default since 0.5."""
    return bool(jax.config.jax_threefry_partitionable)


@contextlib.contextmanager
def rows_from(first: Any, rows: int) -> Iterator[None]:
    """While a step is traced: its rows are a part of the batch.

    Args:
        first: Number of the first one within the whole batch; traced.
        rows: How many there are.
    """
    if getattr(keras_random.dropout, "__wrapped__", None) is None:
        keras_random.dropout = _counted_from_the_part(keras_random.dropout)
    token = _part.set((first, rows))
    try:
        yield
    finally:
        _part.reset(token)


def _counted_from_the_part(dropout: Any) -> Any:
    """Keras's dropout, which all its layers call; the same where no part is being traced."""

    @functools.wraps(dropout)
    def drop(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        part = _part.get()
        if part is None or rate in (0.0, 1.0):
            return dropout(inputs, rate, noise_shape, seed)
        first, rows = part
        if noise_shape is not None or inputs.shape[0] != rows:
            raise NotImplementedError(f"dropout of shape {inputs.shape} over {rows} rows of a batch")
        key = keras_random.jax_draw_seed(seed)
        start = jnp.stack(_product(first, math.prod(inputs.shape[1:])))
        counted = jax.random.wrap_key_data(jnp.concatenate([key, start]), impl=_COUNTED)
        return dropout(inputs, rate, noise_shape, counted)

    return drop


def _product(first: Any, each: int) -> tuple[Any, Any]:
    """`first * each` as upper and lower 32 bits; JAX has no 64 bits by default."""
    first = first.astype(jnp.uint32)
    a, b = first >> 16, first & _HALF
    c, d = jnp.uint32(each >> 16), jnp.uint32(each & _HALF)
    middle = (b * d >> 16) + (a * d & _HALF) + (b * c & _HALF)
    return a * c + (a * d >> 16) + (b * c >> 16) + (middle >> 16), first * jnp.uint32(each)


def _bits(key: Any, width: int, shape: tuple[int, ...]) -> Any:
    """Random bits of the elements from number `key[2:]` on, as JAX's own threefry has them for `key[:2]`."""
    if width not in (8, 16, 32) or math.prod(shape) > 2**32:
        raise NotImplementedError(f"random numbers of {width} bits, {shape} of them, for a part of a batch")
    high, low = key[2], key[3]
    count = jnp.zeros(shape, jnp.uint32)
    for dim in range(len(shape)):
        stride = jnp.uint32(math.prod(shape[dim + 1 :]))
        count += jax.lax.broadcasted_iota(jnp.uint32, shape, dim) * stride
    number = count + low
    carry = (number < low).astype(jnp.uint32)
    a, b = jax_random.threefry2x32_p.bind(
        *(jnp.broadcast_to(each, shape) for each in (key[0], key[1], high + carry)), number
    )
    return (a ^ b).astype(f"uint{width}")


def _unused(*_: Any) -> Any:
    raise NotImplementedError("a key for a part of a batch is only drawn from")


_COUNTED = jax_random.define_prng_impl(
    key_shape=(4,), seed=_unused, split=_unused, random_bits=_bits, fold_in=_unused, name="part", tag="part"
)
