"""The loop that an expert writes for two processes: the same Keras model, one compiled step, nothing around.

Each process takes the gradients of its own rows. `--sums flat` sends them and the metrics in one buffer, with
`each` every variable travels by itself. No callbacks, no input pipeline; dropout is each process's own.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from peer import Peer, leave


def main() -> None:
    """Train when told."""
    peer = Peer(["jax", "keras"], sums=["flat", "each"])
    here = peer.place
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(here.address, here.workers, here.worker)

    import keras
    from models import CASES

    case = CASES[peer.options.model]
    x, y = case.rows()
    model = case.compiled()
    model.optimizer.build(model.trainable_variables)
    mesh = Mesh(np.array(jax.devices()), ("worker",))
    whole, split = PartitionSpec(), PartitionSpec("worker")
    everywhere, by_rows = NamedSharding(mesh, whole), NamedSharding(mesh, split)
    seeds = [variable.name == "seed_generator_state" for variable in model.non_trainable_variables]

    def loss_of(trainable: Any, others: Any, x: Any, y: Any) -> Any:
        worker = jax.lax.axis_index("worker").astype("uint32")
        own = [v.at[0].add(worker) if seed else v for v, seed in zip(others, seeds, strict=True)]
        guess, own = model.stateless_call(trainable, own, x, training=True)
        others = [v.at[0].add(-worker) if seed else v for v, seed in zip(own, seeds, strict=True)]
        loss = keras.losses.sparse_categorical_crossentropy(y, guess).mean()
        return loss, (others, (guess.argmax(-1) == y).mean())

    def sums(tree: Any) -> Any:
        if peer.options.sums == "each":
            return jax.tree.map(lambda leaf: jax.lax.psum(leaf, "worker") / here.workers, tree)
        flat, back = ravel_pytree(tree)
        return back(jax.lax.psum(flat, "worker") / here.workers)

    def step(trainable: Any, others: Any, slots: Any, totals: Any, x: Any, y: Any) -> Any:
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (others, right)), gradients = gradient(trainable, others, x, y)
        gradients, seen = sums((gradients, jnp.stack([loss, right])))
        trainable, slots = model.optimizer.stateless_apply(slots, gradients, trainable)
        return trainable, others, slots, totals + seen

    every = jax.shard_map(
        step, mesh=mesh, in_specs=(whole,) * 4 + (split,) * 2, out_specs=(whole,) * 4, check_vma=False
    )
    compiled = jax.jit(every, donate_argnums=(0, 1, 2, 3))

    def put(value: Any) -> jax.Array:
        return jax.make_array_from_process_local_data(everywhere, np.asarray(value))

    lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state: list[Any] = [[put(v) for v in variables] for variables in lists]
    epoch = 0

    def share(rows: np.ndarray) -> jax.Array:  # half the cost of device_put and an array of single devices
        shape = (rows.shape[0] * here.workers, *rows.shape[1:])
        return jax.make_array_from_callback(shape, by_rows, lambda _: rows)

    def train(epochs: int) -> dict[str, float]:
        nonlocal epoch
        for _ in range(epochs):
            epoch += 1
            totals = put(np.zeros(2, "float32"))
            for own_x, own_y in peer.batches(x, y, epoch):
                *state[:], totals = compiled(*state, totals, share(own_x), share(own_y))
            loss, accuracy = np.asarray(totals.addressable_data(0)) / case.steps
        return {"loss": float(loss), "accuracy": float(accuracy)}

    peer.run(train)
    leave()


main()
