"""The rows of a batch as arrays: which columns have them, padding them, cutting them back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

Rows = int | None | tuple[int, ...]
"""What a step is told of a batch's true rows; see `cut`."""


def is_sparse(value: Any) -> bool:
    """True for JAX's sparse arrays, which are trees of their own."""
    return isinstance(value, sparse.JAXSparse)


def has_rows(column: Any) -> bool:
    """True for a dense column with at least one dim; others go whole to each replica."""
    return not is_sparse(column) and np.ndim(column) > 0


def pad(column: Any, missing: int) -> Any:
    """Append `missing` copies of the last row: finite values, which `cut` takes off before any use."""
    if not missing:
        return column
    numpy = jnp if isinstance(column, jax.Array) else np
    if not len(column):
        return numpy.zeros((missing, *column.shape[1:]), column.dtype)
    return numpy.concatenate([column, numpy.broadcast_to(column[-1:], (missing, *column.shape[1:]))])


def cut(batch: Any, rows: Rows) -> Any:
    """Take a placed batch back to its true rows, inside a compiled step.

    Args:
        batch: Tree of arrays, each `(padded, ...)`.
        rows: True rows, static; None where nothing was padded. A tuple has those of each replica, where
            padding stands between them.

    Returns:
        The tree with arrays of `(rows, ...)`.
    """
    if rows is None:
        return batch
    if isinstance(rows, tuple):
        return jax.tree.map(lambda column: _joined(column, rows), batch, is_leaf=is_sparse)
    return jax.tree.map(
        lambda column: column[:rows] if has_rows(column) else column, batch, is_leaf=is_sparse
    )


def _joined(column: Any, sizes: tuple[int, ...]) -> Any:
    """The true rows of replicas that lie padded one after the other."""
    if not has_rows(column):
        return column
    each = column.shape[0] // len(sizes)
    runs = [column[i * each : i * each + size] for i, size in enumerate(sizes) if size]
    return jnp.concatenate(runs)
