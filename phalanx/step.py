"""The steps in the global view: the one-device program over the whole batch, split by the compiler.

Batch statistics, dropout masks, clipping, regularisers and finite checks are those of one device by
construction, because nothing here knows how many replicas there are (GSPMD, Xu et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from phalanx.rows import Rows, cut, pad
from phalanx.split import rows_per_replica
from phalanx.uneven import needs_whole

Step = Callable[[Any, Any, Rows], tuple[Any, Any]]
"""`(state, placed batch, true rows) -> (logs or outputs, new state)`."""


def update_step(step: Callable[[Any, Any], tuple[Any, Any]], whole: Any = None) -> Step:
    """A Keras `train_step` or `test_step` over the true rows of a placed batch.

    Args:
        step: `(state, batch) -> (logs, state)`.
        whole: Sharding that holds a remainder whole on every replica, where it cannot be split unevenly.

    Returns:
        The step with the static number of true rows as its third argument.
    """

    def run(state: Any, batch: Any, rows: Rows) -> tuple[Any, Any]:
        return step(state, _remainder(step, state, batch, rows, whole))

    return run


def predict_step(
    step: Callable[[Any, Any], tuple[Any, Any]], whole: Any, split: Any = None, replicas: int = 1
) -> Step:
    """A Keras `predict_step` over the true rows of a placed batch.

    Args:
        step: `((trainable, non_trainable), batch) -> (outputs, non_trainable)`.
        whole: Sharding that holds outputs whole on every replica, for remainders that do not divide.
        split: Sharding by rows for outputs that stay where they are, padded as the batch was; None for
            outputs without padding, whole where they cannot be split.
        replicas: Devices of `split`.

    Returns:
        The step with the static number of true rows as its third argument.
    """

    def run(state: Any, batch: Any, rows: Rows) -> tuple[Any, Any]:
        outputs, non_trainable = step(state, _remainder(step, state, batch, rows, whole))
        if split is not None:
            outputs = jax.lax.with_sharding_constraint(_padded(outputs, rows, replicas), split)
        elif rows is not None:
            outputs = jax.lax.with_sharding_constraint(outputs, whole)
        return outputs, (state[0], non_trainable)

    return run


def _remainder(step: Callable[..., Any], state: Any, batch: Any, rows: Rows, whole: Any) -> Any:
    """The true rows of a batch, laid out so that the compiler can split the step."""
    if isinstance(rows, tuple) and whole is not None:  # padding between rows: no even parts to split by
        return cut(jax.lax.with_sharding_constraint(batch, whole), rows)
    batch = cut(batch, rows)
    if rows is None or whole is None or not needs_whole(step, state, batch):
        return batch
    return jax.lax.with_sharding_constraint(batch, whole)


def _padded(outputs: Any, rows: Rows, replicas: int) -> Any:
    """Outputs laid out as the batch that they belong to: each replica's rows, then its padding."""
    if rows is None:
        return outputs
    sizes = rows if isinstance(rows, tuple) else rows_per_replica(rows, replicas)
    each = max(sizes)

    def laid_out(column: Any) -> Any:
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        runs = [
            pad(column[start : start + size], each - size) for start, size in zip(starts, sizes, strict=True)
        ]
        return jnp.concatenate(runs)

    return jax.tree.map(laid_out, outputs)
