"""Dropout over a part of a batch has the masks of one device."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from phalanx.engine import keras as engine
from phalanx.engine.arrays import Placement
from phalanx.engine.keras import masks
from phalanx.replica_step import train_step

X = jnp.ones((13, 3, 5))


def dropped(x, first=None, seed=7):
    layer = keras.layers.Dropout(0.4, seed=seed)
    if first is None:
        return np.asarray(layer(x, training=True))
    with masks.rows_from(jnp.int32(first), x.shape[0]):
        return np.asarray(layer(x, training=True))


@pytest.mark.parametrize(("first", "last"), [(0, 13), (0, 4), (4, 9), (12, 13)])
def test_a_part_of_the_rows_is_dropped_as_in_the_whole(first, last):
    whole = dropped(X)
    assert 0 < (whole == 0).sum() < whole.size
    assert (dropped(X[first:last], first) == whole[first:last]).all()


def test_outside_a_part_dropout_is_keras_own():
    before = dropped(X)
    dropped(X[:4], 4)
    assert (dropped(X) == before).all()


def test_a_draw_over_other_than_the_rows_is_refused():
    with masks.rows_from(jnp.int32(0), 3), pytest.raises(NotImplementedError, match="over 3 rows"):
        keras.layers.Dropout(0.4)(X, training=True)


def test_numbers_of_elements_have_64_bits():
    rng = np.random.default_rng(0)
    for first, each in [*rng.integers(2**31, size=(20, 2)).tolist(), [2**31 - 1, 2**32 - 1]]:
        high, low = masks._product(jnp.uint32(first), each)
        assert int(high) * 2**32 + int(low) == first * each
    key = jnp.array([3, 4], "uint32")
    start = 2**32 - 3
    found = masks._bits(jnp.array([3, 4, start >> 32, start & 0xFFFFFFFF], "uint32"), 32, (2, 3))
    for i, number in enumerate(range(start, start + 6)):
        a, b = jax.extend.random.threefry2x32_p.bind(
            key[0], key[1], jnp.uint32(number >> 32), jnp.uint32(number & 0xFFFFFFFF)
        )
        assert int(a ^ b) == int(found.ravel()[i])
    assert (masks._bits(jnp.array([3, 4, 0, 0], "uint32"), 32, (4, 2)) == jax.random.bits(key, (4, 2))).all()


def test_a_step_in_parts_is_the_step_of_one_device():
    """Five rows on four replicas: 2, 2, 1 and 0; the last one's seeds move on all the same."""
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((3, 5)), keras.layers.Dropout(0.4), keras.layers.Dense(1)])
    made.compile("sgd", "mse", metrics=["mae"])
    x, y = np.asarray(X[:5]) * np.arange(15).reshape(3, 5), np.ones((5, 3, 1), "float32")
    engine.build(made, (x, y))
    state = tuple([v.value for v in part] for part in engine.variables_of(made))
    logs, after = jax.jit(made.train_step)(state, (x, y))

    devices = jax.devices("cpu")[:4]
    assert len(devices) == 4
    place = Placement(devices)
    batch = place.place((x, y), 5)
    step = jax.jit(train_step(engine.replica_parts(made, row_by_row=True), place.mesh), static_argnums=2)
    ours, state = step(tuple(place.replicate(part) for part in state), batch.arrays, batch.cut)
    for found, wanted in zip(jax.tree.leaves((ours, state)), jax.tree.leaves((logs, after)), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=1e-5)
