"""The steps in the global view: the one-device program over the whole batch, split by the compiler.

Batch statistics, dropout masks, clipping, regularisers and finite checks are those of one device by
construction, because nothing here knows how many replicas there are (GSPMD, Xu et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.errors import UnsupportedError, message
from phalanx.rows import Rows, cut, has_rows, is_sparse, pad
from phalanx.split import padded_rows
from phalanx.uneven import needs_whole

Step = Callable[[Any, Any, Rows], tuple[Any, Any]]
"""`(state, placed batch, true rows) -> (logs or outputs, new state)`."""


def update_step(step: Callable[[Any, Any], tuple[Any, Any]], whole: NamedSharding | None = None) -> Step:
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
    step: Callable[[Any, Any], tuple[Any, Any]], whole: NamedSharding, own: bool = False
) -> Step:
    """A Keras `predict_step` over the true rows of a placed batch.

    Args:
        step: `((trainable, non_trainable), batch) -> (outputs, non_trainable)`.
        whole: Sharding that holds outputs whole on every replica, for remainders that do not divide.
        own: True for outputs that stay where their rows are, padded as the batch was; False for outputs
            without padding, whole where they cannot be split.

    Returns:
        The step with the static number of true rows as its third argument.
    """

    def run(state: Any, batch: Any, rows: Rows) -> tuple[Any, Any]:
        batch = _remainder(step, state, batch, rows, whole)
        outputs, non_trainable = step(state, batch)
        if own:
            laid_out = _laid_out(outputs, batch, rows, whole.mesh.size)
            outputs = jax.lax.with_sharding_constraint(laid_out, _by_rows(whole))
        elif rows is not None:
            outputs = jax.lax.with_sharding_constraint(outputs, whole)
        return outputs, (state[0], non_trainable)

    return run


def _remainder(
    step: Callable[..., Any], state: Any, batch: Any, rows: Rows, whole: NamedSharding | None
) -> Any:
    """The true rows of a batch, laid out so that the compiler can split the step."""
    between = isinstance(rows, tuple) and whole is not None  # padding between rows, not behind them
    if between:
        batch = jax.lax.with_sharding_constraint(batch, whole)
    batch = cut(batch, rows)
    if rows is None or whole is None:
        return batch
    if needs_whole(step, state, batch):
        return jax.lax.with_sharding_constraint(batch, whole)
    return _spread(batch, _by_rows(whole)) if between else batch


def _by_rows(whole: NamedSharding) -> NamedSharding:
    return NamedSharding(whole.mesh, PartitionSpec(*whole.mesh.axis_names))


def _spread(batch: Any, rows: NamedSharding) -> Any:
    """Rows that lie whole everywhere, dealt evenly for the step."""
    return jax.tree.map(
        lambda column: jax.lax.with_sharding_constraint(column, rows) if has_rows(column) else column,
        batch,
        is_leaf=is_sparse,
    )


def _laid_out(outputs: Any, batch: Any, rows: Rows, replicas: int) -> Any:
    """Outputs laid out as the batch that they belong to: each replica's rows, then its padding."""
    count = next(column.shape[0] for column in jax.tree.leaves(batch) if has_rows(column))
    shapes = [jnp.shape(column) for column in jax.tree.leaves(outputs)]
    other = next((shape for shape in shapes if shape[:1] != (count,)), None)
    if other is not None:
        raise UnsupportedError(
            message(
                "A worker's own part of the outputs needs one row out for each row in.",
                f"an output of shape {other} for {count} rows",
                "model.predict(x)   # the whole output on every worker",
            )
        )
    if rows is None:
        return outputs
    if not isinstance(rows, tuple):
        return jax.tree.map(lambda column: pad(column, padded_rows(rows, replicas) - rows), outputs)
    each, starts = max(rows), [sum(rows[:replica]) for replica in range(replicas)]

    def runs(column: Any) -> Any:
        parts = zip(starts, rows, strict=True)
        return jnp.concatenate([pad(column[start : start + size], each - size) for start, size in parts])

    return jax.tree.map(runs, outputs)
