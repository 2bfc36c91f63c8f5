"""A look at the gradients of parts of a batch: how far apart they lie, without a step being taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from phalanx.replica_step import Parts, seed_of
from phalanx.rows import has_rows


def noise_step(parts: Parts, mesh: Mesh, rows: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Build `((trainable, non_trainable, optimizer, metrics), batch) -> (small, big)`.

    Each replica takes the gradient of the first rows of its own share; one replica takes two.

    Args:
        parts: The model's training step, taken apart.
        mesh: One axis, one device per replica.
        rows: Rows of one part, no more than a share holds (half of it on one replica).

    Returns:
        The function. `small` is the mean squared norm of the parts' gradients, `big` the squared norm of
        their mean, both float32 scalars.
    """
    (axis,) = mesh.axis_names
    replicas = mesh.shape[axis]
    looks = 1 if replicas > 1 else 2
    whole, split = PartitionSpec(), PartitionSpec(axis)

    def on_replica(state: Any, batch: Any) -> tuple[Any, Any]:
        trainable, non_trainable, optimizer, metrics = state
        replica = jax.lax.axis_index(axis)
        gradients = []
        for look in range(looks):
            seeded = [
                seed_of(replica * looks + look, value) if merge == "seed" else value
                for value, merge in zip(non_trainable, parts.merges, strict=True)
            ]
            part = jax.tree.map(
                lambda column, start=look * rows: (
                    column[start : start + rows] if has_rows(column) else column
                ),
                batch,
            )
            gradient = jax.value_and_grad(parts.loss, has_aux=True)
            (scaled, (loss, *_)), found = gradient(trainable, seeded, metrics, optimizer, part)
            scale = jnp.where(loss == 0, 1.0, scaled / loss) * (rows if parts.sums else 1)
            gradients.append([(g / scale).astype(jnp.float32) for g in found if g is not None])
        small = sum(_squared(each) for each in gradients)
        mean = [sum(each) / (replicas * looks) for each in zip(*gradients, strict=True)]
        flat = jnp.concatenate([each.ravel() for each in mean] + [jnp.reshape(small, 1)])
        total = jax.lax.psum(flat, axis)  # one all-reduce for all of it
        return total[-1] / (replicas * looks), _squared([total[:-1]])

    def look(state: Any, batch: Any) -> tuple[Any, Any]:
        spec = jax.tree.map(lambda column: split if has_rows(column) else whole, batch)
        each = jax.shard_map(
            on_replica, mesh=mesh, in_specs=(whole, spec), out_specs=(whole, whole), check_vma=False
        )
        return each(state, batch)

    return look


def _squared(gradients: list[Any]) -> Any:
    return sum(jnp.sum(jnp.square(each)) for each in gradients)
