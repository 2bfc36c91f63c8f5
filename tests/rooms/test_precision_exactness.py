"""Mixed precision on replicas equals mixed precision on one device, as far as 16 bits go.

Where the bound comes from. A 16-bit matmul rounds its result to `eps / 2` relative (eps: 2^-10 in float16, 2^-7 in
bfloat16). One device rounds the gradient of a weight once, over all rows; R replicas round R partial sums and
then R - 1 additions, so a gradient may differ by `R eps / 2` of the sum of its parts' sizes: 2 eps on four
replicas. Weights stay float32, and here learning rate times steps is under one half, so weights of size one
stay within eps. Losses and metrics see the weights' difference through two or three 16-bit layers, each
of which rounds its outputs once more by `eps / 2`: together under 4 eps, which is what is asked for.
"""

import functools

import keras
import numpy as np
import pytest
from keras import layers, losses, optimizers

from tests.rooms.cases import BFLOAT16, FLOAT16, assert_equal, built, everything, replicas

BOUNDS = {"mixed_float16": FLOAT16, "mixed_bfloat16": BFLOAT16}
X = np.random.default_rng(1).normal(size=(37, 8, 8, 2)).astype("float32")
Y = np.random.default_rng(2).integers(0, 3, 37)


def convolutions(policy):
    """Convolution, batch norm, dropout and two dense layers; the logits in float32."""

    def build():
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            stack = [
                layers.Conv2D(4, 3, use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
                layers.Dropout(0.2),
                layers.GlobalAveragePooling2D(),
                layers.Dense(8, activation="tanh"),
                layers.Dense(3, dtype="float32"),
            ]
            return compiled(keras.Sequential([keras.Input((8, 8, 2)), *stack]))
        finally:
            keras.config.set_dtype_policy(before)

    return build


def row_by_row(policy):
    """No layer that looks across rows, for the replica view."""

    def build():
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            stack = [layers.Conv2D(4, 3, activation="tanh"), layers.LayerNormalization(), layers.Flatten()]
            return compiled(
                keras.Sequential([keras.Input((8, 8, 2)), *stack, layers.Dense(3, dtype="float32")])
            )
        finally:
            keras.config.set_dtype_policy(before)

    return build


def compiled(model):
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.05), loss, metrics=["sparse_categorical_crossentropy"])
    return model


def run(build, strategy):
    """Two epochs of 16, 16 and 5 rows."""
    model = built(build, strategy)
    history = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    added = [history.pop(name, None) for name in ("skipped_steps", "loss_scale")]
    assert history["loss"][0] != history["loss"][1]
    assert added in ([None, None], [[0, 0], [32768.0, 32768.0]])
    return history | everything(model, "after")


@functools.cache
def wanted(make, policy):
    return run(make(policy), None)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("policy", BOUNDS)
def test_replicas_equal_one_device_under_both_policies(policy, count):
    assert_equal(run(convolutions(policy), replicas(count)), wanted(convolutions, policy), BOUNDS[policy])


@pytest.mark.parametrize("policy", BOUNDS)
def test_the_replica_view_equals_one_device_under_both_policies(policy):
    found = run(row_by_row(policy), replicas(4, view="replica"))
    assert_equal(found, wanted(row_by_row, policy), BOUNDS[policy])


def test_a_policy_set_inside_the_scope_outside_it_or_on_the_layers_is_the_same():
    def fitted(outside, inside):
        before = keras.config.dtype_policy()
        try:
            keras.config.set_dtype_policy(outside)
            strategy = replicas(2)
            keras.utils.clear_session(free_memory=False)
            keras.utils.set_random_seed(0)
            with strategy.scope():
                keras.config.set_dtype_policy(inside)
                stack = [layers.Dense(8, activation="tanh"), layers.Dense(1, dtype="float32")]
                model = keras.Sequential([keras.Input((8,)), *stack])
                model.compile(optimizers.SGD(0.05), "mse")
            keras.config.set_dtype_policy("float32")  # of no concern to a model that is made
            history = model.fit(X[:16, 0, :, 0], Y[:16], batch_size=16, verbose=0).history
            assert model.layers[0].compute_dtype == "float16" and model.layers[0].dtype == "float32"
            return history | everything(model, "after")
        finally:
            keras.config.set_dtype_policy(before)

    inside = fitted("float32", "mixed_float16")
    assert inside["skipped_steps"] == [0] and inside["loss_scale"] == [32768.0]
    assert_equal(fitted("mixed_float16", "mixed_float16"), inside, 0.0)
