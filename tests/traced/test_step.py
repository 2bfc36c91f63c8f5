"""The global view's steps over batches that lie padded on four devices, without Keras."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.engine.arrays import Placement
from phalanx.step import predict_step, update_step


@pytest.fixture(scope="module")
def placement():
    devices = jax.devices("cpu")[:4]
    assert len(devices) == 4
    return Placement(devices)


def count_and_mean(state, batch):
    """A step that would notice any row too many, too few or twice."""
    (x,) = batch
    return {"mean": jnp.mean(x), "rows": x.shape[0], "variance": jnp.var(x)}, state + jnp.sum(x)


def poisoned(placement, column):
    """A placed column whose padding is NaN, so that one use of it shows."""
    placed = placement.place((column,), len(column))
    (array,) = placed.arrays
    return jax.device_put(
        jnp.where(jnp.arange(placed.padded) < placed.rows, array, jnp.nan), placement.rows
    ), placed.cut


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 37])
def test_padding_reaches_no_statistic(placement, rows):
    column = np.random.default_rng(rows).normal(size=rows).astype("float32")
    array, true_rows = poisoned(placement, column)
    assert len(array.addressable_shards) == 4
    assert true_rows == (None if rows % 4 == 0 else rows)

    step = jax.jit(update_step(count_and_mean), static_argnums=2)
    logs, state = step(jnp.float32(0), (array,), true_rows)

    assert logs["rows"] == rows
    np.testing.assert_allclose(logs["mean"], column.mean(), atol=1e-6)
    np.testing.assert_allclose(logs["variance"], column.var(), atol=1e-6)
    np.testing.assert_allclose(state, column.sum(), atol=1e-5)


@pytest.mark.parametrize("rows", [3, 4, 37])
def test_predictions_are_one_row_out_per_row_in_and_state_is_passed_on(placement, rows):
    def double(state, batch):
        trainable, non_trainable = state
        return {"out": batch[0] * trainable}, non_trainable + 1

    column = np.arange(rows, dtype="float32")
    array, true_rows = poisoned(placement, column)
    step = jax.jit(predict_step(double, placement.whole), static_argnums=2)
    outputs, (trainable, non_trainable) = step((jnp.float32(2), jnp.float32(0)), (array,), true_rows)

    np.testing.assert_array_equal(outputs["out"], 2 * column)
    assert (trainable, non_trainable) == (2, 1)


def test_a_remainder_comes_back_whole_on_every_replica(placement):
    array, true_rows = poisoned(placement, np.arange(5, dtype="float32"))
    step = jax.jit(predict_step(lambda state, batch: (batch[0], state[1]), placement.whole), static_argnums=2)
    outputs, _ = step((jnp.float32(0), jnp.float32(0)), (array,), true_rows)
    assert [shard.data.shape for shard in outputs.addressable_shards] == [(5,)] * 4


def test_a_remainder_compiles_once_and_not_once_per_epoch(placement):
    traced = []

    def note(state, batch):
        traced.append(batch[0].shape)
        return {}, state

    step = jax.jit(update_step(note), static_argnums=2)
    for _ in range(3):
        for rows in (8, 8, 5):
            array, true_rows = poisoned(placement, np.ones(rows, "float32"))
            step(jnp.float32(0), (array,), true_rows)
    assert traced == [(8,), (5,)]
