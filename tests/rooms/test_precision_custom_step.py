"""`get_scaled_loss` and `get_unscaled_gradients` in a train_step of one's own, as examples/custom_train_step.py has it."""

import importlib
import sys
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from keras import ops, optimizers

import phalanx
from tests.rooms.cases import FLOAT16, assert_copies_equal_to_the_bit, assert_equal, built, replicas

EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")
X = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
Y = np.random.default_rng(1).integers(0, 10, 48)
SCALED = optimizers.LossScaleOptimizer


@pytest.fixture(scope="module")
def example():
    """The script, imported as it stands."""
    sys.path.insert(0, EXAMPLES)
    try:
        yield importlib.import_module("custom_train_step")
    finally:
        sys.path.remove(EXAMPLES)
        for name in ("custom_train_step", "digits"):
            sys.modules.pop(name, None)


def made(example, optimizer, kind, strategy=None, policy="mixed_float16"):
    def build():
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            return example.build(8, optimizer, kind)
        finally:
            keras.config.set_dtype_policy(before)

    return built(build, strategy)


def trained(model, x=X, **rest):
    history = model.fit(x, Y, batch_size=16, epochs=2, shuffle=False, verbose=0, **rest).history
    weights = {f"{i}, {v.path}": np.asarray(v.value) for i, v in enumerate(model.weights)}
    return history | weights | {"iterations": int(model.optimizer.iterations)}


@pytest.fixture(scope="module")
def wanted(example):
    """Plain Keras on one device with its own train_step and its own clipping: another way to the same numbers."""
    optimizer = optimizers.SGD(0.05, global_clipnorm=example.LARGEST_NORM)
    return trained(made(example, optimizer, keras.Model))


@pytest.mark.parametrize("count", [1, 4])
def test_the_example_equals_keras_own_clipping_on_one_device_and_skips_what_overflows(example, wanted, count):
    model = made(example, optimizers.SGD(0.05), example.Clipped, replicas(count))
    found = trained(model)
    assert found.pop("loss_scale") == [32768.0, 32768.0] and found.pop("skipped_steps") == [0, 0]
    assert_equal(found, wanted, FLOAT16)

    x = X.copy()
    x[16 + 9] = 1e5
    found = trained(model, x)
    assert found["skipped_steps"] == [1, 1] and found["loss_scale"] == [16384.0, 8192.0]
    assert found["iterations"] == 6 + 4 and np.isfinite(found["loss"]).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert_copies_equal_to_the_bit(model, count)


def test_the_same_step_serves_a_policy_that_does_not_scale(example):
    model = made(example, optimizers.SGD(0.2), example.Clipped, replicas(2), "mixed_bfloat16")
    assert set(model.fit(X, Y, batch_size=16, verbose=0).history) == {"loss", "accuracy"}


class Step(keras.Model):
    """A train_step with its calls chosen by the test."""

    scales = unscales = True

    def change(self, gradients):
        return gradients

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, measured = state
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)

        def loss_of(trainable):
            y_pred, _ = self.stateless_call(trainable, non_trainable, x, training=True)
            loss = self.compute_loss(x, y, y_pred)
            return (phalanx.get_scaled_loss(self.optimizer, loss) if self.scales else loss), loss

        gradients, loss = jax.grad(loss_of, has_aux=True)(trainable)
        if self.unscales:
            gradients = phalanx.get_unscaled_gradients(self.optimizer, gradients)
        gradients = self.change(gradients)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"batch_loss": loss}, (trainable, non_trainable, optimizer, measured)


class NeverScaled(Step):
    scales = unscales = False


class OnlyUnscaled(Step):
    scales = False


class OnlyScaled(Step):
    unscales = False


class ByValue(Step):
    def change(self, gradients):
        return [ops.clip(g, -0.01, 0.01) for g in gradients]


@pytest.mark.parametrize(
    "kind, what", [(NeverScaled, "apply with"), (OnlyUnscaled, "get_unscaled_gradients with")]
)
def test_a_loss_that_was_not_scaled_is_an_error_that_says_so(example, kind, what):
    model = made(example, optimizers.SGD(0.2), kind, replicas(2))
    with pytest.raises(phalanx.UnsupportedError, match=what) as error:
        model.train_on_batch(X[:16], Y[:16])
    assert "phalanx.get_scaled_loss(self.optimizer, loss)" in str(error.value)


def test_leaving_out_the_unscaling_is_right_too_because_keras_unscales(example):
    once = {kind: made(example, optimizers.SGD(0.2), kind, replicas(2)) for kind in (Step, OnlyScaled)}
    for model in once.values():
        model.train_on_batch(X[:16], Y[:16])
    for a, b in zip(*(model.get_weights() for model in once.values())):
        np.testing.assert_array_equal(a, b)


def test_clipping_by_value_does_not_hide_an_overflow(example):
    model = made(example, optimizers.SGD(0.2), ByValue, replicas(2))
    x = X[:16].copy()
    x[3] = 1e5
    before = model.get_weights()
    logs = model.train_on_batch(x, Y[:16], return_dict=True)
    assert logs["skipped_steps"] == 1 and logs["loss_scale"] == 16384.0
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)
    model.train_on_batch(X[:16], Y[:16])
    moved = [np.abs(a - b).max() for a, b in zip(before, model.get_weights())]
    assert 0 < max(moved) <= 0.2 * 0.01 + 1e-6, "clipped at the true size: not divided twice, not left scaled"


# ------------------------------------------------------------------------------ outside a strategy


def test_a_compiled_step_of_plain_keras_has_to_hand_its_variables_over(example):
    model = made(example, optimizers.SGD(0.2), Step)
    with pytest.raises(phalanx.UnsupportedError, match="optimizer_variables=optimizer_variables"):
        model.train_on_batch(X[:16], Y[:16])


def test_a_step_of_ones_own_hands_its_variables_over():
    optimizer = SCALED(optimizers.SGD(1.0), initial_scale=8.0)
    weight = keras.Variable(np.float32(3.0))
    optimizer.build([weight])

    @jax.jit
    def step(variables, weight):
        def loss(weight):
            return phalanx.get_scaled_loss(optimizer, weight**2, optimizer_variables=variables)

        (gradient,) = phalanx.get_unscaled_gradients(
            optimizer, [jax.grad(loss)(weight)], optimizer_variables=variables
        )
        (weight,), variables = optimizer.stateless_apply(variables, [gradient / 2], [weight])
        return gradient, weight, variables

    start = [v.value for v in optimizer.variables]
    gradient, new, _ = step(start, weight.value)
    assert float(gradient) == 6.0 and float(new) == 0.0
    _, new, variables = step(start, weight.value * np.inf)
    scale = [v.name for v in optimizer.variables].index("dynamic_scale")
    assert float(new) == np.inf and float(variables[scale]) == 4.0


def test_other_optimizers_get_back_what_they_gave():
    optimizer, loss, gradients = optimizers.SGD(), ops.array(2.0), [ops.array(1.0)]
    assert phalanx.get_scaled_loss(optimizer, loss) is loss
    assert phalanx.get_unscaled_gradients(optimizer, gradients) is gradients


def test_mixed_up_arguments_and_fixed_factors_are_refused():
    with pytest.raises(phalanx.SettingError, match="first argument is the optimizer"):
        phalanx.get_scaled_loss(ops.array(2.0), optimizers.SGD())
    with pytest.raises(phalanx.UnsupportedError, match="loss_scale_factor=4"):
        phalanx.get_scaled_loss(optimizers.SGD(loss_scale_factor=4.0), ops.array(2.0))
