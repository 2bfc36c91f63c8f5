"""Rows of the public reports about metrics, precision and uneven data, each with its right value."""

import contextlib

import jax
import keras
import numpy as np
import pytest
from keras import layers, metrics, ops, optimizers

import phalanx
from tests.rooms.cases import assert_copies_equal_to_the_bit, assert_equal, built, everything, replicas

X = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


class Rows(metrics.Metric):
    """Counts the rows that it is shown."""

    def __init__(self, name="rows", **kwargs):
        super().__init__(name=name, **kwargs)
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign_add(ops.shape(y_true)[0])

    def result(self):
        return self.seen.value


def reference(optimizer=None, *more, normalised=False, loss="mse", **rest):
    """A builder of the reports' model M: 8 -> 16 relu -> 1."""

    def build():
        norm = [layers.BatchNormalization(momentum=0.9)] if normalised else []
        first = layers.Dense(16, activation=None if norm else "relu", use_bias=not norm, name="d1")
        relu = [layers.ReLU()] if norm else []
        model = keras.Sequential([keras.Input((8,)), first, *norm, *relu, layers.Dense(1, name="d2")])
        model.compile(optimizer() if optimizer else "adam", loss, metrics=["mae", Rows(), *more], **rest)
        return model

    return build


def fitted(build, strategy, n, batch_size=32, epochs=1, **rest):
    """A model fitted to the first n rows, and its history."""
    model = built(build, strategy)
    fit = dict(batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0) | rest
    return model, model.fit(X[:n], Y[:n], **fit).history


def passthrough(*kinds, loss="mse"):
    """A builder of a model that returns its input, so that metrics see chosen scores."""

    def build():
        model = keras.Sequential([keras.Input((1,)), layers.Identity()])
        model.compile("sgd", loss, metrics=[kind() for kind in kinds])
        return model

    return build


# --------------------------------------------------------------- row 2: rows that do not fill a batch


@pytest.mark.parametrize(
    "n, batch_size, normalised",
    [(70, 32, False), (67, 32, True), (65, 32, False), (65, 32, True), (6, 3, False)],
)
def test_row_2_rows_that_do_not_fill_a_batch_count_once_in_fit_evaluate_and_predict(
    n, batch_size, normalised
):
    def run(strategy):
        model, history = fitted(reference(normalised=normalised), strategy, n, batch_size, epochs=2)
        assert history["rows"] == [n, n]
        results = model.evaluate(X[:n], Y[:n], batch_size=batch_size, verbose=0, return_dict=True)
        assert results["rows"] == n
        predictions = model.predict(X[:n], batch_size=batch_size, verbose=0)
        assert predictions.shape == (n, 1)
        return (
            everything(model, "after")
            | history
            | {"predictions": predictions}
            | {f"evaluate {name}": value for name, value in results.items()}
        )

    assert_equal(run(replicas(4)), run(None))


@pytest.mark.parametrize(
    "n, rest, val_rows",
    [(64, {"validation_data": (X[:70], Y[:70])}, 70), (100, {"validation_split": 0.17}, 17)],
    ids=["validation_data", "validation_split"],
)
def test_row_2_validation_counts_each_row_once(n, rest, val_rows):
    def run(strategy):
        model, history = fitted(reference(), strategy, n, **rest)
        assert history["val_rows"] == [val_rows]
        return everything(model, "after") | history

    assert_equal(run(replicas(4)), run(None))


def test_row_2_predictions_stay_in_order():
    rows = np.arange(70, dtype="float32")[:, None]
    model = built(passthrough(), replicas(4))
    np.testing.assert_array_equal(model.predict(rows, batch_size=32, verbose=0), rows)


# ------------------------------------------------------------------ rows 7 and 26: metrics are merged


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_row_7_mean_absolute_error_of_nine_rows_in_batches_of_five_is_exactly_four(count):
    errors = np.arange(9, dtype="float32")[:, None]
    model = built(passthrough(lambda: "mae", Rows), replicas(count))
    results = model.evaluate(errors, np.zeros_like(errors), batch_size=5, verbose=0, return_dict=True)
    assert results["mae"] == 4.0  # repeating a row to fill a batch gives 3.6 or 4.4
    assert results["rows"] == 9


def test_row_7_three_replicas_see_ten_thousand_rows_once_each():
    rows = np.zeros((10_000, 1), "float32")
    model = built(passthrough(Rows), replicas(3))
    assert model.evaluate(rows, rows, batch_size=512, verbose=0, return_dict=True)["rows"] == 10_000


@pytest.mark.parametrize("count", [1, 2, 4])
def test_row_26_auc_f1_precision_and_counts_are_merged_and_not_averaged(count):
    labels = np.array([0, 1, 1, 0, 1, 0, 0, 1], "float32")[:, None]
    scores = np.array([0.1, 0.4, 0.35, 0.8, 0.7, 0.2, 0.5, 0.9], "float32")[:, None]
    counts = [metrics.TruePositives, metrics.FalsePositives, metrics.TrueNegatives, metrics.FalseNegatives]
    kinds = [metrics.AUC, metrics.Precision, lambda: metrics.F1Score("micro", threshold=0.5), *counts]

    model = built(passthrough(*kinds), replicas(count))
    found = model.evaluate(scores, labels, batch_size=8, verbose=0, return_dict=True)

    assert found["auc"] == pytest.approx(11 / 16, abs=1e-6)  # the mean of the two halves is 0.75
    assert found["precision"] == pytest.approx(2 / 3, abs=1e-6)  # above 0.5: 0.8 wrong, 0.7 and 0.9 right
    assert found["f1_score"] == pytest.approx(4 / 7, abs=1e-6)
    names = ["true_positives", "false_positives", "true_negatives", "false_negatives"]
    assert [found[name] for name in names] == [2, 1, 3, 2]


# ------------------------------------------------------------------------ row 22: batch normalisation


@pytest.mark.parametrize("n", [64, 67])
def test_row_22_moving_statistics_are_those_of_global_batches_and_survive_saving(n, tmp_path):
    def build():
        model = keras.Sequential(
            [keras.Input((8,)), layers.BatchNormalization(momentum=0.9), layers.Dense(1)]
        )
        model.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
        return model

    one, history = fitted(build, None, n, epochs=3)
    four, found = fitted(build, replicas(4), n, epochs=3)
    assert_equal(everything(four, "after") | found, everything(one, "after") | history)

    mean, variance = np.zeros(8), np.ones(8)  # by hand; the short batch is one update over its own rows
    for _ in range(3):
        for rows in (X[:32], X[32:64], X[64:n]):
            if len(rows):
                mean, variance = 0.9 * mean + 0.1 * rows.mean(0), 0.9 * variance + 0.1 * rows.var(0)
    np.testing.assert_allclose(four.layers[0].moving_mean, mean, atol=1e-5)
    np.testing.assert_allclose(four.layers[0].moving_variance, variance, atol=1e-5)

    four.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    live, saved = (m.evaluate(X[:n], Y[:n], verbose=0, return_dict=True) for m in (four, loaded))
    assert saved == pytest.approx(live, abs=1e-6)


# --------------------------------------------------------------------- rows 12 and 23: loss scaling


@contextlib.contextmanager
def policy(name):
    """Keras's global dtype policy, inside; a Sequential model takes it when it is made and when it is loaded."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def half_precision(optimizer=lambda: optimizers.Adam(0.01)):
    """A builder of M in mixed_float16 with a float32 output; its optimizer scales the loss by itself."""

    def build():
        with policy("mixed_float16"):
            hidden = layers.Dense(16, activation="relu", name="d1")
            model = keras.Sequential([keras.Input((8,)), hidden, layers.Dense(1, dtype="float32", name="d2")])
            model.compile(optimizer(), "mse")
        return model

    return build


def scales(optimizer):
    """The loss scale on every replica."""
    return [float(shard.data) for shard in optimizer.dynamic_scale.value.addressable_shards]


@pytest.mark.parametrize("view", ["global", "replica"])
def test_row_23_an_overflow_on_one_replica_halves_the_scale_once_and_skips_the_step_everywhere(
    view, tmp_path
):
    y = Y[:128].copy()
    y[32 + 16] = (
        1e4  # step 1, first row of replica 2 of 4: a finite loss whose scaled gradient is beyond float16
    )
    model = built(half_precision(), replicas(4, view=view))
    after = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            after.append(self.model.get_weights())

    model.fit(X[:128], y, batch_size=32, shuffle=False, verbose=0, callbacks=[Keep()])

    assert scales(model.optimizer) == [16384.0] * 4
    assert int(model.optimizer.iterations) == 3  # four steps, one skipped
    assert int(model.optimizer.step_counter) == 2
    for before_step, after_step in zip(after[0], after[1]):
        np.testing.assert_array_equal(before_step, after_step)  # the skipped one
    assert any((a != b).any() for a, b in zip(after[1], after[2]))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert_copies_equal_to_the_bit(model, 4)

    model.save(tmp_path / "m.keras")
    with policy("mixed_float16"):
        loaded = keras.models.load_model(tmp_path / "m.keras")
    assert float(loaded.optimizer.dynamic_scale) == 16384.0
    assert int(loaded.optimizer.iterations) == 3


def test_row_23_overflow_leaves_replicas_where_one_device_is():
    y = Y[:70].copy()
    y[69] = 1e4  # in the tail of 6 rows: shares of 2, 2, 2, 0

    def run(strategy):
        model = built(half_precision(lambda: optimizers.SGD(0.05, momentum=0.9)), strategy)
        model.fit(X[:70], y, batch_size=32, epochs=2, shuffle=False, verbose=0)
        assert float(model.optimizer.dynamic_scale) == 8192.0
        values = everything(model, "after")
        return {name: value for name, value in values.items() if not name.startswith("after: metrics")}

    # Metrics differ on purpose: plain Keras counts the skipped steps in, see test_precision_skips.py.
    assert_equal(run(replicas(4)), run(None), tolerance=4 * 2.0**-10)


@pytest.mark.parametrize("view", ["global", "replica"])
def test_row_12_a_row_beyond_float16_skips_its_step_alone(view):
    x = X[:128].copy()
    x[40] = 1e5  # infinite in float16
    model = built(half_precision(), replicas(4, view=view))
    model.fit(x, Y[:128], batch_size=64, shuffle=False, verbose=0)
    assert scales(model.optimizer) == [16384.0] * 4
    assert int(model.optimizer.iterations) == 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


# ---------------------------------------------------------------------- row 47: gradient accumulation


def test_row_47_two_accumulated_batches_of_16_equal_one_of_32_and_carry_over_epochs():
    strategy = replicas(4)
    rows = np.tile(X[:48], (3, 1)), np.tile(Y[:48], (3, 1))  # three epochs of three micro-batches
    small = built(reference(lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2)), strategy)
    small.fit(X[:48], Y[:48], batch_size=16, epochs=3, shuffle=False, verbose=0)
    large = built(reference(lambda: optimizers.Adam(0.01)), strategy)
    large.fit(rows[0][:128], rows[1][:128], batch_size=32, shuffle=False, verbose=0)

    assert (
        int(small.optimizer.iterations) == int(large.optimizer.iterations) == 4
    )  # the ninth is carried over
    for a, b in zip(small.get_weights(), large.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_row_47_an_unfinished_cycle_and_a_schedule_leave_replicas_where_one_device_is():
    def optimizer():
        return optimizers.Adam(
            optimizers.schedules.ExponentialDecay(0.05, 1, 0.5), gradient_accumulation_steps=2
        )

    def run(strategy):
        model, history = fitted(reference(optimizer), strategy, 67, batch_size=16, epochs=1)
        return everything(model, "after") | history | {"rate": float(model.optimizer.learning_rate)}

    found, wanted = run(replicas(4)), run(None)
    accumulated = [value for name, value in wanted.items() if "accumulator" in name]
    assert any(np.abs(value).max() > 0 for value in accumulated), "the cycle was meant to stop half way"
    assert_equal(found, wanted)


# ------------------------------------------------------------------------------ row 48: custom steps


def test_row_48_a_custom_step_trains_and_logs_as_compile_and_fit():
    class Custom(keras.Model):
        def train_step(self, state, data):
            trainable, non_trainable, optimizer, values = state
            x, y = data

            def loss_of(trainable):
                y_pred, own = self.stateless_call(trainable, non_trainable, x, training=True)
                return ops.mean(ops.square(y - y_pred)), own

            (loss, own), grads = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
            return {"error": loss}, (trainable, own, optimizer, values)

        def test_step(self, state, data):
            trainable, non_trainable, values = state
            x, y = data
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=False)
            return {"error": ops.mean(ops.square(y - y_pred))}, (trainable, non_trainable, values)

    def build(kind):
        def make():
            x = keras.Input((8,))
            model = kind(x, layers.Dense(1)(layers.Dense(16, activation="relu")(x)))
            model.compile(optimizers.Adam(0.01), "mse")
            return model

        return make

    strategy = replicas(4)
    custom, logged = fitted(build(Custom), strategy, 30, batch_size=30, epochs=3)
    stock, wanted = fitted(build(keras.Model), strategy, 30, batch_size=30, epochs=3)
    np.testing.assert_allclose(
        logged["error"], wanted["loss"], atol=1e-6
    )  # one batch: its log is the epoch's
    for a, b in zip(custom.get_weights(), stock.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)

    found = custom.evaluate(X[:30], Y[:30], batch_size=30, verbose=0, return_dict=True)
    predicted = np.asarray(stock(X[:30]))
    assert found == {"error": pytest.approx(np.mean((predicted - Y[:30]) ** 2), abs=1e-6)}


# --------------------------------------------------------------------------------- row 57: clipping


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_row_57_clipping_acts_on_the_whole_gradient(clip):
    build = reference(lambda: optimizers.SGD(0.1, **{clip: 0.1}))
    four, one, free = (
        fitted(kind, strategy, 64)[0].get_weights()
        for kind, strategy in [
            (build, replicas(4)),
            (build, None),
            (reference(lambda: optimizers.SGD(0.1)), None),
        ]
    )
    for a, b in zip(four, one):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert max(np.abs(a - b).max() for a, b in zip(one, free)) > 1e-3, "nothing was clipped"


# ------------------------------------------------------------------- row 46: every device does its share


def test_row_46_every_device_gets_its_rows():
    strategy = phalanx.MirroredStrategy([f"cpu:{i}" for i in range(4)])
    built(reference(), strategy).fit(X[:70], Y[:70], batch_size=32, epochs=2, verbose=0)
    assert strategy.report().rows == (2 * (8 + 8 + 2), 2 * (8 + 8 + 2), 2 * (8 + 8 + 2), 2 * (8 + 8 + 0))
    assert "cpu:3" in str(strategy.report())
