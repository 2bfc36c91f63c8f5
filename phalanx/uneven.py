"""Programs that XLA's partitioner cannot split by rows when the rows do not divide by the replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

_WHOLE = ("sort", "fft", "top_k")  # measured on JAX 0.10.2: the process is aborted, or an internal error


def needs_whole(step: Callable[..., Any], *arguments: Any) -> bool:
    """True for a step in which an operation works along rows that the partitioner must not cut unevenly.

    Such a step gets the whole remainder on every replica: the same numbers, without the speed of many.

    Args:
        step: The traced function.
        *arguments: What it is called with, traced or not.

    Example:
        >>> needs_whole(lambda x: jax.numpy.sort(x, axis=0), jax.numpy.ones(3))
        True
        >>> needs_whole(lambda x: x + 1, jax.numpy.ones(3))
        False
    """
    jaxpr = jax.make_jaxpr(step)(*arguments)
    return any(name in _WHOLE for name in _primitives(jaxpr.jaxpr))


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from _primitives(inner)
