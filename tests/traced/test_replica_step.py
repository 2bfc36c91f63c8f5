"""The replica view's step with a step made by hand, no Keras: shares, merges, and the one all-reduce."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.engine.arrays import Placement
from phalanx.replica_step import Parts, train_step
from phalanx.split import rows_per_replica

X = np.random.default_rng(0).normal(size=(37, 3)).astype("float32")
W = np.array([0.5, -1.0, 2.0], "float32")
SEED = np.array([11, 0], "uint32")


def linear(sums=False):
    """y = mean (or sum) of x @ w; each kind of own variable; a learning rate of one."""

    def loss(trainable, non_trainable, metrics, optimizer, batch):
        (w,), (x,) = trainable, batch
        seed, mean, total, steps = non_trainable
        rows = x @ w
        value = rows.sum() if sums else rows.mean()
        own = [seed + jnp.array([0, 1], seed.dtype), x.mean(0), total + x.sum(0), steps + 1]
        drawn = jax.random.uniform(jax.random.wrap_key_data(seed), (x.shape[0],))
        return value, (value, {"rows": rows, "drawn": drawn}, own, [metrics[0] + x.shape[0]])

    def update(optimizer, gradients, trainable):
        return [w - g for w, g in zip(trainable, gradients)], [optimizer[0] + 1]

    def measure(metrics, loss, y_pred, batch):
        return {"loss": loss, "seen": batch[0].shape[0], **y_pred}, metrics

    return Parts(
        loss=loss, update=update, measure=measure, merges=["seed", "mean", "sum", "first"], sums=sums
    )


def run(rows, replicas=4, sums=False, sizes=None):
    """One step over the first rows, padded with NaN that nobody may use."""
    placement = Placement(jax.devices("cpu")[:replicas])
    assert placement.replicas == replicas
    placed = placement.place((X[:rows],), rows, sizes=sizes)
    (x,) = placed.arrays
    place = jnp.arange(placed.padded) % (placed.padded // replicas)
    true = place < jnp.repeat(jnp.array(placed.sizes), placed.padded // replicas)
    x = jax.device_put(jnp.where(true[:, None], x, jnp.nan), placement.rows)
    step = jax.jit(train_step(linear(sums), placement.mesh), static_argnums=2)
    own = [SEED, np.zeros(3, "float32"), np.full(3, 5, "float32"), np.int32(7)]
    state = ([W], own, [np.int32(0)], [np.float32(100)])
    return step(jax.device_put(state, placement.whole), (x,), placed.cut)


@pytest.mark.parametrize("rows, replicas", [(8, 4), (37, 4), (5, 4), (1, 4), (37, 8), (3, 1), (9, 2)])
def test_loss_gradient_and_outputs_are_those_of_the_whole_batch(rows, replicas):
    logs, (trainable, _, optimizer, _) = run(rows, replicas)
    np.testing.assert_allclose(logs["loss"], (X[:rows] @ W).mean(), atol=1e-6)
    np.testing.assert_allclose(logs["rows"], X[:rows] @ W, atol=1e-6)
    np.testing.assert_allclose(trainable[0], W - X[:rows].mean(0), atol=1e-6)
    assert logs["seen"] == rows and optimizer[0] == 1


@pytest.mark.parametrize("rows", [8, 5, 37])
def test_a_summed_loss_adds_up_over_replicas(rows):
    logs, (trainable, _, _, _) = run(rows, sums=True)
    np.testing.assert_allclose(logs["loss"], (X[:rows] @ W).sum(), atol=1e-5)
    np.testing.assert_allclose(trainable[0], W - X[:rows].sum(0), atol=1e-5)


@pytest.mark.parametrize("rows", [8, 5, 37])
def test_own_variables_merge_each_in_its_way(rows):
    _, (_, (seed, mean, total, steps), _, (seen,)) = run(rows)
    np.testing.assert_array_equal(seed, [11, 1])  # the counter moved once, the seed not at all
    np.testing.assert_allclose(mean, X[:rows].mean(0), atol=1e-6)
    np.testing.assert_allclose(total, 5 + X[:rows].sum(0), atol=1e-5)
    assert steps == 8 and steps.dtype == jnp.int32
    assert seen == 100 + rows


def test_each_replica_draws_from_its_own_seed():
    logs, _ = run(8)
    drawn = np.asarray(logs["drawn"]).reshape(4, 2)
    assert len({row.tobytes() for row in drawn}) == 4
    alone = jax.random.uniform(jax.random.wrap_key_data(SEED), (2,))
    np.testing.assert_array_equal(drawn[0], alone)  # the first replica's seed is the model's


def test_replicas_hold_the_same_bits_afterwards():
    _, state = run(37)
    for leaf in jax.tree.leaves(state):
        assert len({np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards}) == 1
        assert len(leaf.addressable_shards) == 4


def test_shares_are_dealt_as_tf_distribute_deals_them():
    assert rows_per_replica(5, 4) == (2, 2, 1, 0) and rows_per_replica(37, 8) == (5, 5, 5, 5, 5, 5, 5, 2)


@pytest.mark.parametrize("sizes", [(0, 3, 0, 3), (3, 1, 0, 2), (0, 0, 0, 1)])
def test_replicas_of_unequal_pipelines_count_by_their_rows(sizes):
    """The first replica may have none: counters and seeds are then those of the first that has rows."""
    rows = sum(sizes)
    logs, (trainable, (seed, mean, total, steps), optimizer, (seen,)) = run(rows, sizes=sizes)
    np.testing.assert_allclose(logs["loss"], (X[:rows] @ W).mean(), atol=1e-6)
    np.testing.assert_allclose(logs["rows"], X[:rows] @ W, atol=1e-6)
    np.testing.assert_allclose(trainable[0], W - X[:rows].mean(0), atol=1e-6)
    np.testing.assert_array_equal(seed, [11, 1])
    np.testing.assert_allclose(mean, X[:rows].mean(0), atol=1e-6)
    np.testing.assert_allclose(total, 5 + X[:rows].sum(0), atol=1e-5)
    assert (steps, seen, logs["seen"], optimizer[0]) == (8, 100 + rows, rows, 1)
