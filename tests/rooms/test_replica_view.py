"""`view="replica"`: batch norm and dropout per replica as in tf.distribute, all else as on one device.

Where Phalanx differs from tf.distribute on purpose: an uneven batch is weighted by its real rows, so the
gradient of a short last batch is that of its rows (tf.distribute gives each replica the same say, 0.9060
where one device has 0.9200 in its own example).
"""

import re

import jax
import keras
import numpy as np
import pytest
from keras import layers, losses, metrics, ops, optimizers

import phalanx
from phalanx.split import rows_per_replica
from phalanx.training import execute, home
from tests.rooms.cases import (
    CASES,
    FLOAT16,
    OwnTrainStep,
    assert_copies_equal_to_the_bit,
    assert_equal,
    built,
    everything,
    mixed,
    mlp,
    oracle,
    replicas,
    train,
)

ROW_BY_ROW = [  # 37 rows in batches of 16: the tail of 5 is shared out as 2, 2, 1, 0
    "dense",
    "layer and group norm",
    "LSTM with mask",
    "regularisers",
    "loss by sum",
    "AdamW with clipnorm and EMA, fit twice",
    "gradient accumulation",
    "sample_weight",
    "AUC, F1, precision, counts",
    "dicts in and out",
    "LoRA",
    "own test_step",
    "shuffled",
    "three steps per execution",
]

X = np.random.default_rng(0).normal(size=(70, 6)).astype("float32") * np.arange(1, 7) + np.arange(6)
Y = np.sin(X[:, :1]).astype("float32")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_models_without_layers_across_rows_equal_one_device(name):
    assert_equal(train(CASES[name], replicas(4, view="replica")), oracle(name), CASES[name].tolerance)


@pytest.mark.parametrize("n, batch_size, count", [(70, 32, 4), (5, 5, 4), (37, 32, 8), (1, 1, 4), (9, 4, 2)])
def test_uneven_shares_are_weighted_by_their_rows(n, batch_size, count):
    def run(strategy):
        model = built(mlp, strategy)
        fit = {"batch_size": batch_size, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(X[:n], Y[:n], **fit).history | everything(model, "after")

    assert_equal(run(replicas(count, view="replica")), run(None))


def test_one_replica_is_one_device_with_batch_norm_and_dropout_too():
    name = "conv, batch norm, dropout, Adam"
    assert_equal(train(CASES[name], replicas(1, view="replica")), oracle(name))


# ------------------------------------------------------------------------------- batch normalisation


def normalising():
    model = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(momentum=0.9), layers.Dense(1)])
    model.compile(optimizers.SGD(0.05), "mse")
    return model


def shares(rows, count):
    """The global batch as tf.distribute deals it out, empty shares left out."""
    ends = np.cumsum(rows_per_replica(len(rows), count))
    return [share for share in np.split(rows, ends[:-1]) if len(share)]


@pytest.mark.parametrize("n", [64, 70, 5], ids=["even", "uneven", "one empty replica"])
def test_moving_statistics_are_the_row_weighted_mean_of_each_replicas_own(n):
    model = built(normalising, replicas(4, view="replica"))
    model.fit(X[:n], Y[:n], batch_size=32, shuffle=False, verbose=0)

    mean, variance = np.zeros(6), np.ones(6)
    for start in range(0, n, 32):
        batch = X[start : min(start + 32, n)]
        dealt = shares(batch, 4)
        weights = [len(share) / len(batch) for share in dealt]
        own_means = sum(w * share.mean(0) for w, share in zip(weights, dealt))
        own_variances = sum(w * share.var(0) for w, share in zip(weights, dealt))
        mean, variance = 0.9 * mean + 0.1 * own_means, 0.9 * variance + 0.1 * own_variances

    np.testing.assert_allclose(model.layers[0].moving_mean, mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.layers[0].moving_variance, variance, rtol=1e-5, atol=1e-5)
    assert_copies_equal_to_the_bit(model, 4)

    whole = built(normalising)
    whole.fit(X[:n], Y[:n], batch_size=32, shuffle=False, verbose=0)
    apart = np.abs(np.asarray(whole.layers[0].moving_variance) - variance).max()
    assert apart > 0.1, "the statistics of the whole batch would have passed, too"


@pytest.mark.parametrize("n", [64, 70], ids=["even", "uneven"])
def test_gradients_through_batch_norm_are_the_row_weighted_mean_of_each_replicas_own(n):
    model = built(normalising, replicas(4, view="replica"))
    model.fit(X[:n], Y[:n], batch_size=32, shuffle=False, verbose=0)

    one = built(normalising)
    trainable = [np.asarray(v.value) for v in one.trainable_variables]
    frozen = [v.value for v in one.non_trainable_variables]

    def loss(trainable, x, y):
        y_pred, _ = one.stateless_call(trainable, frozen, x, training=True)
        return ops.mean(ops.square(y - y_pred))

    for start in range(0, n, 32):
        rows = slice(start, min(start + 32, n))
        dealt = list(zip(shares(X[rows], 4), shares(Y[rows], 4)))
        total = [np.zeros_like(v) for v in trainable]
        for x, y in dealt:
            gradients = jax.grad(loss)(trainable, x, y)
            total = [t + g * (len(x) / len(X[rows])) for t, g in zip(total, gradients)]
        trainable = [v - 0.05 * t for v, t in zip(trainable, total)]

    for variable, value in zip(model.trainable_variables, trainable):
        np.testing.assert_allclose(variable, value, atol=1e-5, err_msg=variable.path)


# ------------------------------------------------------------------------------------------ dropout


class Drop(layers.Layer):
    """Dropout whose output shows its mask, as long as its input has no zero."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(7)

    def build(self, shape):
        self.scale = self.add_weight((), initializer="ones", name="scale")

    def call(self, x, training=False):
        return keras.random.dropout(x * self.scale, 0.5, seed=self.seed_generator) if training else x


class Last(metrics.Metric):
    """Keeps the outputs of the last step."""

    def __init__(self, **kwargs):
        super().__init__(name="last", **kwargs)
        self.outputs = self.add_variable((8, 64), "zeros", name="outputs")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.outputs.assign(y_pred)

    def result(self):
        return ops.sum(self.outputs)


def masks(strategy, steps=2):
    """The dropout masks (rows, 64) of each step over 8 rows, and the state of the seed afterwards."""

    def build():
        model = keras.Sequential([keras.Input((64,)), Drop()])
        model.compile(optimizers.SGD(1e-3), "mse", metrics=[Last()])
        return model

    model, ones, found = built(build, strategy), np.ones((8, 64), "float32"), []
    for _ in range(steps):
        model.train_on_batch(ones, ones)
        (kept,) = [v for v in model.metrics_variables if v.name == "outputs"]
        found.append(np.asarray(kept.value) != 0)
    return found, np.asarray(model.layers[0].seed_generator.state.value)


def test_dropout_masks_differ_between_replicas_rows_and_steps():
    (first, second), _ = masks(replicas(4, view="replica"))
    assert len({row.tobytes() for row in [*first, *second]}) == 16
    for step in (first, second):
        assert all(0.2 < share.mean() < 0.8 for share in np.split(step, 4))


def test_dropout_of_the_global_view_is_that_of_one_device():
    (four, four_seed), (one, one_seed) = masks(replicas(4)), masks(None)
    np.testing.assert_array_equal(four, one)
    np.testing.assert_array_equal(four_seed, one_seed)


def test_the_seed_counter_advances_as_on_one_device():
    (_, four), (_, one) = masks(replicas(4, view="replica"), steps=3), masks(None, steps=3)
    np.testing.assert_array_equal(four, one)


def test_the_same_seed_draws_the_same_masks_again():
    again, before = masks(replicas(4, view="replica")), masks(replicas(4, view="replica"))
    np.testing.assert_array_equal(again[0], before[0])


# ------------------------------------------------------------------- own variables, precision, losses


def test_counters_count_steps_once_and_running_means_are_weighted_by_rows():
    class Watch(layers.Layer):
        def build(self, shape):
            self.steps = self.add_weight(
                (), dtype="int32", initializer="zeros", trainable=False, name="steps"
            )
            self.mean = self.add_weight((6,), initializer="zeros", trainable=False, name="mean")
            self.total = self.add_weight(
                (6,), initializer="zeros", trainable=False, aggregation="sum", name="total"
            )

        def call(self, x, training=False):
            if training:
                self.steps.assign_add(1)
                self.mean.assign(ops.mean(x, axis=0))
                self.total.assign_add(ops.sum(x, axis=0))
            return x

    def build():
        model = keras.Sequential([keras.Input((6,)), Watch(), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    model = built(build, replicas(4, view="replica"))
    model.fit(X, Y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    watch = model.layers[0]
    assert int(watch.steps) == 6
    np.testing.assert_allclose(
        watch.mean, X[64:].mean(0), rtol=1e-5, atol=1e-5
    )  # the tail: shares 2, 2, 2, 0
    np.testing.assert_allclose(watch.total, 2 * X.sum(0), rtol=1e-5, atol=1e-4)
    assert_copies_equal_to_the_bit(model, 4)


def test_float16_with_loss_scaling_equals_one_device_on_uneven_shares():
    def run(strategy):
        model = built(lambda: mixed("mixed_float16"), strategy)
        history = model.fit(X / 6, Y, batch_size=32, epochs=2, shuffle=False, verbose=0).history
        assert float(model.optimizer.dynamic_scale) == 32768.0 and int(model.optimizer.iterations) == 6
        return {name: history[name] for name in ("loss", "mae")} | everything(model, "after")

    assert_equal(run(replicas(4, view="replica")), run(None), FLOAT16)


def refused_models():
    def two_outputs(*reductions):
        x = keras.Input((6,))
        model = keras.Model(x, [layers.Dense(1, name="p")(x), layers.Dense(1, name="q")(x)])
        model.compile("sgd", [losses.MeanSquaredError(reduction) for reduction in reductions])
        return model

    def own_step():
        x = keras.Input((6,))
        model = OwnTrainStep(x, layers.Dense(1)(x))
        model.compile("sgd", "mse")
        return model

    def sum_with_regulariser():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(1, kernel_regularizer="l2")])
        model.compile("sgd", losses.MeanSquaredError("sum"))
        return model

    return {
        "overrides train_step": own_step,
        "run_eagerly": lambda: mlp(run_eagerly=True),
        "jit_compile=False": lambda: mlp(jit_compile=False),
        "'sum', 'sum_over_batch_size'": lambda: two_outputs("sum", "sum_over_batch_size"),
        "'mean_with_sample_weight'": lambda: mlp(loss=losses.MeanSquaredError("mean_with_sample_weight")),
        "regularisers": sum_with_regulariser,
    }


@pytest.mark.parametrize("why", refused_models())
def test_what_cannot_be_taken_apart_is_refused_before_any_step(why):
    model = built(refused_models()[why], replicas(4, view="replica"))
    y = [Y, Y] if len(model.outputs) == 2 else Y
    before = everything(model, "now")
    for attempt in (lambda: model.fit(X, y, batch_size=32, verbose=0), lambda: model.train_on_batch(X, y)):
        with pytest.raises(phalanx.UnsupportedError, match=re.escape(why)):
            attempt()
        after = everything(model, "now")
        for name in before:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert np.isfinite(model.predict(X, verbose=0)[0]).all(), "a refused model still predicts"


# ------------------------------------------------------------------------------------ communication


def test_gradients_meet_in_one_all_reduce():
    def build():
        stack = [layers.Dense(7, activation="relu") for _ in range(8)]
        model = keras.Sequential(
            [keras.Input((6,)), *stack, layers.BatchNormalization(), layers.Dropout(0.1), layers.Dense(1)]
        )
        model.compile("adam", "mse")
        return model

    strategy = replicas(4, view="replica")
    model = built(build, strategy)
    model.train_on_batch(X[:32], Y[:32])
    step = home.compiled(model, home.home_of(model), "train", execute.TRAIN)
    parts = [
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    ]
    state = tuple([variable.value for variable in part] for part in parts)
    placed = strategy.placement.place((X[:32], Y[:32]), 32)
    program = step.lower(state, placed.arrays, placed.cut).compile().as_text()

    reductions = re.findall(r"= (.+?) all-reduce(?:-start)?\(", program)
    weights = model.count_params() - sum(int(np.prod(v.shape)) for v in model.non_trainable_variables)
    large = [
        r
        for r in reductions
        if sum(np.prod([int(d) for d in dims.split(",") if d]) for dims in re.findall(r"\[([\d,]*)\]", r))
        >= weights
    ]
    assert len(large) == 1, reductions
    assert len(reductions) <= 5, reductions  # gradients with loss; statistics; seeds; metrics
