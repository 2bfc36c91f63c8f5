"""The global view's steps over batches that lie padded on four devices, without Keras."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.engine.arrays import Placement
from phalanx.errors import UnsupportedError
from phalanx.split import rows_per_replica
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


def between(placement, column, sizes):
    """Rows that lie with padding between them, as pipelines of unequal lengths bring them; padding is NaN."""
    placed = placement.place((column,), len(column), sizes=sizes)
    each, starts = max(sizes), np.cumsum([0, *sizes])
    poisoned = np.full((each * len(sizes), *column.shape[1:]), np.nan, column.dtype)
    for replica, size in enumerate(sizes):
        poisoned[replica * each : replica * each + size] = column[starts[replica] : starts[replica] + size]
    return jax.device_put(poisoned, placement.rows), placed.cut


@pytest.mark.parametrize("sizes", [(0, 3, 0, 3), (3, 1, 0, 2), (0, 0, 0, 1), (4, 5, 5, 5)])
def test_padding_between_rows_reaches_no_statistic_and_the_step_is_split(placement, sizes):
    column = np.random.default_rng(0).normal(size=sum(sizes)).astype("float32")
    array, true_rows = between(placement, column, sizes)
    assert true_rows == sizes
    step = jax.jit(update_step(count_and_mean, placement.whole), static_argnums=2)
    logs, state = step(jnp.float32(0), (array,), true_rows)
    assert logs["rows"] == len(column)
    np.testing.assert_allclose(logs["mean"], column.mean(), atol=1e-6)
    np.testing.assert_allclose(logs["variance"], column.var(), atol=1e-6)
    np.testing.assert_allclose(state, column.sum(), atol=1e-5)


def test_rows_of_unequal_replicas_are_dealt_evenly_for_the_step(placement):
    seen = []

    def look(state, batch):
        jax.debug.inspect_array_sharding(batch[0], callback=seen.append)
        return {}, state

    array, true_rows = between(placement, np.ones((16, 2), "float32"), (0, 8, 0, 8))
    jax.jit(update_step(look, placement.whole), static_argnums=2)(jnp.float32(0), (array,), true_rows)
    assert [each.shard_shape((16, 2)) for each in seen] == [(4, 2)]


@pytest.mark.parametrize("sizes", [None, (0, 3, 0, 3), (3, 1, 0, 2)])
@pytest.mark.parametrize("rows", [6, 8])
def test_outputs_of_ones_own_lie_where_their_rows_are(placement, rows, sizes):
    column = np.arange(rows, dtype="float32")
    if sizes is None:
        array, true_rows = poisoned(placement, column)
        sizes = rows_per_replica(rows, 4)
    else:
        sizes = sizes if rows == 6 else tuple(size + (size > 0) for size in sizes)
        column = np.arange(sum(sizes), dtype="float32")
        array, true_rows = between(placement, column, sizes)
    step = jax.jit(
        predict_step(lambda state, batch: ({"out": 2 * batch[0]}, state[1]), placement.whole, own=True),
        static_argnums=2,
    )
    outputs, _ = step((jnp.float32(0), jnp.float32(0)), (array,), true_rows)
    assert outputs["out"].sharding.is_equivalent_to(placement.rows, 1)
    np.testing.assert_array_equal(placement.own_part(outputs, sizes)["out"], 2 * column)


def test_outputs_without_a_row_for_each_row_have_no_own_part(placement):
    array, true_rows = poisoned(placement, np.ones(5, "float32"))
    step = predict_step(lambda state, batch: (jnp.sum(batch[0]), state[1]), placement.whole, own=True)
    with pytest.raises(UnsupportedError, match=r"an output of shape \(\) for 5 rows"):
        jax.jit(step, static_argnums=2)((jnp.float32(0), jnp.float32(0)), (array,), true_rows)
