"""The training step in the replica view: own loss, batch-norm and dropout on each replica, as tf.distribute.

Gradients meet in one fused all-reduce. Where tf.distribute gives every replica the same say, here each
counts by its real rows, so that a short last batch has the gradient of its rows and not of its replicas.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.rows import Rows, cut, has_rows
from phalanx.split import rows_per_replica
from phalanx.step import Step

_SEED_STRIDE = 0x9E3779B9  # odd (Knuth's multiplicative constant): replicas' seeds differ for any seed


@dataclass(frozen=True)
class Parts:
    """A Keras training step, taken apart.

    Args:
        loss: `(trainable, non_trainable, metrics, optimizer, batch)` ->
            `(scaled loss, (loss, y_pred, non_trainable, metrics))`, differentiable in its first argument.
        update: `(optimizer, gradients, trainable)` -> `(trainable, optimizer)`.
        measure: `(metrics, loss, y_pred, batch)` -> `(logs, metrics)`.
        merges: For each non-trainable variable `"seed"`, `"mean"`, `"sum"` or `"first"`.
        sums: True if the loss adds up rows, False if it averages them.
        row_by_row: True if each row is computed by itself and random numbers are one device's: `loss` then
            takes the number of the first row too, and gives the variables that it changes as one device does.
    """

    loss: Callable[..., Any]
    update: Callable[..., Any]
    measure: Callable[..., Any]
    merges: Sequence[str]
    sums: bool
    row_by_row: bool = False


def train_step(parts: Parts, mesh: Mesh) -> Step:
    """Build the step `((trainable, non_trainable, optimizer, metrics), batch, rows) -> (logs, state)`.

    Args:
        parts: The model's step, taken apart.
        mesh: One axis, one device per replica.

    Returns:
        The step over a placed batch with its static number of true rows.
    """
    (axis,) = mesh.axis_names
    replicas = mesh.shape[axis]
    whole, split = PartitionSpec(), PartitionSpec(axis)

    def run(state: Any, batch: Any, rows: Rows) -> tuple[Any, Any]:
        trainable, non_trainable, optimizer, metrics = state
        padded = next(column.shape[0] for column in jax.tree.leaves(batch) if has_rows(column))
        sizes = rows if isinstance(rows, tuple) else rows_per_replica(rows or padded, replicas)
        spec = jax.tree.map(lambda column: split if has_rows(column) else whole, batch)
        each = jax.shard_map(
            functools.partial(_on_replica, parts, axis, sizes, padded // replicas),
            mesh=mesh,
            in_specs=(whole, whole, whole, whole, spec),
            out_specs=(whole, split, whole, whole, whole),
            check_vma=False,  # lax.switch over replicas of unequal size is not expressible to the checker
        )
        loss, y_pred, gradients, non_trainable, metrics = each(
            trainable, non_trainable, metrics, optimizer, batch
        )
        trainable, optimizer = parts.update(optimizer, gradients, trainable)
        if isinstance(rows, tuple):
            y_pred, batch = jax.lax.with_sharding_constraint((y_pred, batch), NamedSharding(mesh, whole))
        logs, metrics = parts.measure(metrics, loss, cut(y_pred, rows), cut(batch, rows))
        return logs, (trainable, non_trainable, optimizer, metrics)

    return run


def _on_replica(
    parts: Parts,
    axis: str,
    sizes: tuple[int, ...],
    each: int,
    trainable: Any,
    non_trainable: Any,
    metrics: Any,
    optimizer: Any,
    batch: Any,
) -> Any:
    """One replica's share: its own forward and backward pass, then the one place where gradients meet."""
    replica = jax.lax.axis_index(axis)
    seeded = [
        seed_of(replica, value) if merge == "seed" and not parts.row_by_row else value
        for value, merge in zip(non_trainable, parts.merges, strict=True)
    ]

    first = (jnp.array(list(itertools.accumulate(sizes, initial=0)))[replica],) if parts.row_by_row else ()

    def share(size: int) -> Any:
        """Loss, outputs, gradients and new variables over the first `size` rows."""
        gradient = jax.value_and_grad(parts.loss, has_aux=True)
        (_, (loss, y_pred, new_non_trainable, new_metrics)), gradients = gradient(
            trainable, seeded, metrics, optimizer, cut(batch, None if size == each else size), *first
        )
        filled = jax.tree.map(
            lambda out: jnp.pad(out, [(0, each - size)] + [(0, 0)] * (out.ndim - 1)), y_pred
        )
        return loss, filled, gradients, new_non_trainable, new_metrics

    def nothing() -> Any:
        """A replica without rows: zeros, and variables as they were."""
        shapes = jax.eval_shape(lambda: share(each))
        loss, y_pred, gradients = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes[:3])
        after = share(each)[3] if parts.row_by_row else seeded  # seeds move on, whoever draws
        return loss, y_pred, gradients, after, metrics

    kinds = sorted(set(sizes), reverse=True)  # of one batch at most three: full, one short, empty
    branches = [functools.partial(share, size) if size else nothing for size in kinds]
    which = jnp.array([kinds.index(size) for size in sizes])[replica]
    loss, y_pred, gradients, new_non_trainable, new_metrics = jax.lax.switch(which, branches)

    mine = jnp.array(sizes, jnp.float32)[replica] / sum(sizes)
    say = jnp.where(mine > 0, 1.0, 0.0) if parts.sums else mine
    changes = [new - old for new, old in zip(new_metrics, metrics, strict=True)]
    (loss, gradients), changes = _all_reduce(axis, (_scaled((loss, gradients), say), changes))
    metrics = [old + change for old, change in zip(metrics, changes, strict=True)]
    if parts.row_by_row:
        return loss, y_pred, gradients, new_non_trainable, metrics
    lead = next(replica for replica, size in enumerate(sizes) if size)  # of a pipeline it may be any
    merged = _all_reduce(
        axis,
        [
            _contribution(merge, old, start, new, replica == lead, mine)
            for merge, old, start, new in zip(
                parts.merges, non_trainable, seeded, new_non_trainable, strict=True
            )
        ],
    )
    non_trainable = [
        value if merge == "mean" else old + value
        for merge, old, value in zip(parts.merges, non_trainable, merged, strict=True)
    ]
    return loss, y_pred, gradients, non_trainable, metrics


def _contribution(merge: str, old: Any, start: Any, new: Any, leads: Any, mine: Any) -> Any:
    """What a replica adds to the merged value (`mean`) or to the merged change (all others)."""
    if merge == "mean":
        return new * mine.astype(new.dtype)
    if merge == "sum":
        return new - old
    return jnp.where(leads, new - start, jnp.zeros_like(new))


def seed_of(replica: Any, state: Any) -> Any:
    """A seed generator's state `(seed, counter)` with the seed moved on by a replica's index."""
    return state.at[0].add((replica.astype(jnp.uint32) * jnp.uint32(_SEED_STRIDE)).astype(state.dtype))


def _scaled(tree: Any, factor: Any) -> Any:
    return jax.tree.map(lambda value: value * factor.astype(value.dtype), tree)


def _all_reduce(axis: str, tree: Any) -> Any:
    """Sum a tree over the replicas in one flat buffer per dtype."""
    leaves, structure = jax.tree.flatten(tree)
    reduced: list[Any] = [None] * len(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        index = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        if dtype == jnp.bool_:
            raise TypeError("boolean variables cannot be summed over replicas")
        flat = jax.lax.psum(jnp.concatenate([leaves[i].ravel() for i in index]), axis)
        start = 0
        for i in index:
            size = leaves[i].size
            reduced[i] = flat[start : start + size].reshape(leaves[i].shape)
            start += size
    return jax.tree.unflatten(structure, reduced)
