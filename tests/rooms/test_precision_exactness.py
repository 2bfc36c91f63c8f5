"""Mixed precision on replicas equals mixed precision on one device, as far as 16 bits go.

Where the bound comes from. A 16-bit matmul rounds its result by half of eps relative (eps: 2^-10 in float16, 2^-7
in bfloat16). One device rounds the gradient of a weight once, over all rows; R replicas round R partial sums and
R - 1 additions, so the gradient may differ by `R eps / 2` of the sum of its parts' sizes: 2 eps on four
replicas. Weights stay in float32, and the learning rates of all steps together are under one half, so weights of
size one stay within eps. Outputs see that difference through three layers, each of which rounds once more
by `eps / 2`: together under 4 eps, which is what is asked for. Longer runs and remainders: `cases.py`.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest
from keras import layers, optimizers

import phalanx
from tests.rooms.cases import BFLOAT16, FLOAT16, assert_equal, built, everything, replicas

BOUNDS = {"mixed_float16": FLOAT16, "mixed_bfloat16": BFLOAT16}
X = np.random.default_rng(1).normal(size=(32, 6)).astype("float32")
Y = np.sin(X[:, :1])


@contextlib.contextmanager
def policy(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def network(name, normalised):
    """Three dense layers, the last one in float32, with or without batch norm."""

    def build():
        with policy(name):
            norm = [layers.BatchNormalization(momentum=0.9)] if normalised else []
            hidden = [
                layers.Dense(16, use_bias=False),
                *norm,
                layers.ReLU(),
                layers.Dense(8, activation="tanh"),
            ]
            model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(1, dtype="float32")])
            model.compile(optimizers.SGD(0.1), "mse", metrics=["mae"])
        return model

    return build


def run(name, normalised, strategy=None):
    """Two epochs of two batches: weights, statistics, optimizer, metrics and history."""
    model = built(network(name, normalised), strategy)
    history = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    if strategy is not None and name == "mixed_float16":
        assert history.pop("skipped_steps") == [0, 0] and history.pop("loss_scale") == [32768.0] * 2
    return history | everything(model, "after")


one_device = functools.cache(run)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", BOUNDS)
def test_replicas_equal_one_device_under_both_policies(name, count):
    wanted = one_device(name, True)
    assert wanted["loss"][1] < wanted["loss"][0], "a model that does not learn would prove nothing"
    assert_equal(run(name, True, replicas(count)), wanted, BOUNDS[name])


@pytest.mark.parametrize("name", BOUNDS)
def test_the_replica_view_equals_one_device_under_both_policies(name):
    found = run(name, False, replicas(4, view="replica"))
    assert_equal(found, one_device(name, False), BOUNDS[name])


def test_verify_keeps_the_policy_that_the_user_has_set():
    seen = []

    def build():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
        model.compile(optimizers.SGD(0.1), "mse")
        seen.append(model.layers[0].compute_dtype)
        return model

    with policy("mixed_bfloat16"):
        report = phalanx.verify(build, X, Y, replicas(2), steps=1, batch_size=16)
    assert seen == ["bfloat16", "bfloat16"]
    assert report.equal(BFLOAT16)


@pytest.mark.parametrize("name, dtype", [("mixed_float16", "float16"), ("mixed_bfloat16", "bfloat16")])
def test_a_policy_set_inside_the_scope_or_outside_it_makes_the_same_model(name, dtype):
    def made():
        keras.utils.set_random_seed(0)
        stack = [layers.Dense(8, activation="tanh"), layers.Dense(1, dtype="float32")]
        model = keras.Sequential([keras.Input((6,)), *stack])
        model.compile(optimizers.SGD(0.1), "mse")
        return model

    with policy(name), replicas(2).scope():
        outside = made()
    with replicas(2).scope(), policy(name):
        inside = made()
    scaled = isinstance(inside.optimizer, optimizers.LossScaleOptimizer)
    assert scaled == isinstance(outside.optimizer, optimizers.LossScaleOptimizer) == (dtype == "float16")
    for model in (outside, inside):
        assert [layer.compute_dtype for layer in model.layers] == [dtype, "float32"]
        assert {variable.dtype for variable in model.variables if "seed" not in variable.name} == {"float32"}
    for a, b in zip(outside.get_weights(), inside.get_weights()):
        np.testing.assert_array_equal(a, b)
