"""A float16 step that overflows is skipped everywhere and leaves no trace but the scale, the count and a warning."""

import contextlib
import functools
import warnings

import keras
import numpy as np
import pytest
from keras import layers, optimizers

import phalanx
from phalanx.engine import arrays
from phalanx.engine import keras as engine
from phalanx.training import home
from phalanx.training.execute import TRAIN
from tests.rooms.cases import FLOAT16, assert_copies_equal_to_the_bit, assert_equal, built, replicas

X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32") / 4
BATCH = 16
BAD_ROW = 16 + 9  # step 1; on four replicas the second row of replica 2
CLEAN = np.r_[0:16, 32:64]  # the rows of all other steps


@contextlib.contextmanager
def policy(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def small():
    """Initial weights under which no gradient comes near the end of float16."""
    return keras.initializers.RandomNormal(stddev=0.05)


def normalised(name="mixed_float16", dropout=0.0, **rest):
    """A builder of 8 -> 16 -> batch norm, relu -> 1 in float32, compiled; with dropout if asked for."""

    def build():
        with policy(name):
            stack = [layers.Dense(16, use_bias=False), layers.BatchNormalization(momentum=0.9), layers.ReLU()]
            out = layers.Dense(1, dtype="float32", kernel_initializer=small())
            stack += [layers.Dropout(dropout)] if dropout else []
            model = keras.Sequential([keras.Input((8,)), *stack, out])
            model.compile(optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"], **rest)
        return model

    return build


def values(model):
    """Weights, moving statistics and optimizer slots; seeds and the scale's own two variables left out."""
    kept = [v for v in model.variables if v.name != "seed_generator_state"]
    kept += [v for v in model.optimizer.variables if v.name not in ("dynamic_scale", "step_counter")]
    return {f"{i}, {v.path}": np.asarray(v.value) for i, v in enumerate(kept)}


@functools.cache
def rig(count=4, view="global"):
    """A model on replicas that is used again and again, and the values that it started with."""
    model = built(normalised(), replicas(count, view=view))
    model.optimizer.build(model.trainable_variables)
    every = [*model.variables, *model.optimizer.variables]
    return model, [(v, np.array(v.value)) for v in every]


def at_start(*which):
    model, start = rig(*which)
    for variable, value in start:
        variable.assign(value)
    return model


class Logs(keras.callbacks.Callback):
    """Keeps what each batch logged."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append({name: float(value) for name, value in logs.items()})


def fit(model, x, y=Y, **rest):
    usual = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    return model.fit(x, y, **(usual | rest)).history


def spoiled(*rows, value=1e5):
    x = X.copy()
    x[list(rows)] = value
    return x


# ------------------------------------------------------------------------------- reports 12 and 23


@pytest.mark.parametrize("count, view", [(4, "global"), (4, "replica")])
def test_rows_12_and_23_a_step_that_overflows_on_one_replica_is_as_if_it_had_never_been(count, view):
    model, logs = at_start(count, view), Logs()
    history = fit(model, spoiled(BAD_ROW), callbacks=[logs])
    scales = [float(copy.data) for copy in model.optimizer.dynamic_scale.value.addressable_shards]
    assert scales == [16384.0] * count
    assert history["skipped_steps"] == [1] and history["loss_scale"] == [16384.0]
    assert [each["skipped_steps"] for each in logs.seen] == [0, 1, 1, 1]
    assert [each["loss_scale"] for each in logs.seen] == [32768.0] + 3 * [16384.0]
    assert logs.seen[1]["loss"] == logs.seen[0]["loss"], "the kept metrics, not the overflow"
    assert logs.seen[3]["loss"] == history["loss"][0]
    assert int(model.optimizer.iterations) == 3
    assert_copies_equal_to_the_bit(model, count)
    found = {name: history[name] for name in ("loss", "mae")} | values(model)

    again = at_start(count, view)  # the same strategy without the bad batch: moving statistics and all
    assert_equal(found, fit_without_scale(again, X[CLEAN], Y[CLEAN]) | values(again), FLOAT16)


def fit_without_scale(model, x, y):
    """The history of loss and metrics alone."""
    history = fit(model, x, y)
    return {name: history[name] for name in ("loss", "mae")}


def test_the_epochs_results_are_those_of_plain_keras_on_the_finite_steps_alone():
    model, plain = at_start(4, "global"), built(normalised())
    found = fit_without_scale(model, spoiled(BAD_ROW), Y)
    wanted = fit(plain, X[CLEAN], Y[CLEAN])
    assert_equal(found | values(model), wanted | values(plain), FLOAT16)


def test_seeds_go_on_through_a_skipped_step_and_moving_statistics_do_not():
    model = built(normalised(dropout=0.2))
    model.optimizer.build(model.trainable_variables)
    goes_on = engine.scaling(model).goes_on
    by_name = {v.name: goes for v, goes in zip(model.non_trainable_variables, goes_on)}
    assert by_name == {"moving_mean": False, "moving_variance": False, "seed_generator_state": True}


def test_each_epoch_counts_its_own_skips_and_halves_on():
    model = at_start(4, "global")
    history = fit(model, spoiled(BAD_ROW), epochs=2)
    assert history["skipped_steps"] == [1, 1]
    assert history["loss_scale"] == [16384.0, 8192.0]
    assert int(model.optimizer.iterations) == 6


def test_a_run_without_overflow_says_so():
    model = at_start(4, "global")
    history = fit(model, X)
    assert history["skipped_steps"] == [0] and history["loss_scale"] == [32768.0]


# --------------------------------------------------------------------------------------- warnings


def test_five_skips_in_a_row_warn_once_per_fit_over_epochs_and_a_lost_epoch_has_no_pretty_loss():
    model = at_start(4, "global")
    before = values(model)
    with pytest.warns(phalanx.PhalanxWarning) as caught:
        history = fit(model, spoiled(*range(64)), epochs=3)
    (warning,) = caught
    text = str(warning.message)
    assert "5 steps in a row" in text and "1024" in text and "mixed_bfloat16" in text
    assert warning.filename == __file__
    assert history["skipped_steps"] == [4, 4, 4] and history["loss_scale"] == [2.0**11, 2.0**7, 2.0**3]
    assert not np.isfinite(history["loss"]).any(), "nothing finite: zero would look like a perfect model"
    for name, value in values(model).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)

    with pytest.warns(phalanx.PhalanxWarning, match="the loss scale is 1,"):
        fit(model, spoiled(0, 16, 32), Y)  # three skips, not five: but the scale ends at 1


def test_four_skips_with_a_finite_step_between_do_not_warn():
    model = at_start(4, "global")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = fit(model, spoiled(0, 17, 49), epochs=2)
    assert history["skipped_steps"] == [3, 3]


def test_watching_the_scale_waits_no_more_than_a_bfloat16_run_which_logs_nothing_new(monkeypatch):
    waits, logs = [], Logs()
    monkeypatch.setattr(arrays, "wait", lambda value, wait=arrays.wait: (waits.append(1), wait(value)))
    fit(at_start(4, "global"), X)
    float16 = len(waits)
    waits.clear()
    history = fit(built(normalised("mixed_bfloat16"), replicas(4)), X, callbacks=[logs])
    assert float16 == len(waits) == 4
    assert history.keys() == logs.seen[0].keys() == {"loss", "mae"}


@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16"])
def test_other_policies_run_the_bare_step(name):
    model = built(normalised(name), replicas(2))
    model.optimizer.build(model.trainable_variables)
    where = home.home_of(model)
    assert engine.scaling(model) is None
    assert home.running(model, where, "train", TRAIN) is home.compiled(model, where, "train", TRAIN)


# ------------------------------------------------------------------------------- saving and resuming


def test_scale_and_counters_survive_save_and_load(tmp_path):
    model = at_start(4, "global")
    fit(model, spoiled(BAD_ROW))
    model.save(tmp_path / "m.keras")
    with policy("mixed_float16"), replicas(2).scope():  # a Sequential model takes the policy of its loading
        loaded = keras.models.load_model(tmp_path / "m.keras")
    assert float(loaded.optimizer.dynamic_scale) == 16384.0
    assert int(loaded.optimizer.step_counter) == 2 and int(loaded.optimizer.iterations) == 3


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def test_scale_and_counters_survive_backup_and_restore(tmp_path):
    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)

    model = at_start(4, "global")
    with pytest.raises(KeyboardInterrupt):
        fit(model, spoiled(BAD_ROW), epochs=2, callbacks=[backup(), Interrupt()])
    resumed = at_start(4, "global")
    assert float(resumed.optimizer.dynamic_scale) == 32768.0
    history = fit(resumed, spoiled(BAD_ROW), epochs=2, callbacks=[backup()])
    assert history["loss_scale"] == [8192.0] and history["skipped_steps"] == [1]
    assert int(resumed.optimizer.iterations) == 6


# ----------------------------------------------------------------------------- other ways of a step


def accumulating():
    with policy("mixed_float16"):
        out = layers.Dense(1, dtype="float32", kernel_initializer=small())
        model = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="tanh"), out])
        model.compile(optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2), "mse")
    return model


@functools.cache
def accumulated_by_plain_keras():
    model = built(accumulating)
    fit(model, spoiled(BAD_ROW))
    return values(model)


def eager():
    with policy("mixed_float16"):
        cast = layers.Activation("linear", dtype="float32")
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1, use_bias=False), cast])
        model.compile(optimizers.SGD(0.05), "mse", run_eagerly=True)
    return model


@pytest.mark.parametrize("view", ["global", "replica"])
def test_a_skipped_micro_step_of_gradient_accumulation_is_what_it_is_on_one_device(view):
    model = built(accumulating, replicas(4, view=view))
    history = fit(model, spoiled(BAD_ROW))
    assert history["skipped_steps"] == [1]
    assert int(model.optimizer.inner_optimizer._iterations) == 3, "micro-steps that were added up"
    assert int(model.optimizer.iterations) == 1
    assert_equal(values(model), accumulated_by_plain_keras(), FLOAT16)


def test_several_steps_per_execution_count_every_step():
    model, logs = built(normalised(steps_per_execution=2), replicas(2)), Logs()
    history = fit(model, spoiled(0, BAD_ROW, 40), callbacks=[logs])
    assert [each["skipped_steps"] for each in logs.seen] == [2, 3]
    assert history["skipped_steps"] == [3]


def test_eager_steps_skip_too():
    model = built(eager, replicas(2))
    history = fit(model, spoiled(BAD_ROW)[:32], Y[:32] / 8)
    assert history["skipped_steps"] == [1] and np.isfinite(history["loss"]).all()
    assert all(np.isfinite(value).all() for value in values(model).values())


def test_single_batches_tell_the_scale_by_name_and_keep_the_shape_of_keras_list():
    model = at_start(4, "global")
    logs = model.train_on_batch(spoiled(3)[:16], Y[:16], return_dict=True)
    assert logs["skipped_steps"] == 1 and logs["loss_scale"] == 16384.0
    assert len(model.train_on_batch(X[:16], Y[:16])) == 2  # loss and mae
