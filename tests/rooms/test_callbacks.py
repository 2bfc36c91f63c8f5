"""Callbacks under a strategy hear what Keras tells them, at the weights of the step they are told of."""

import csv
import functools
import os
import signal
import threading

import jax
import keras
import numpy as np
import pytest

import phalanx

X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
CLOSE = {"rtol": 0, "atol": 1e-5}


def build(**compiled):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", name="d1"),
            keras.layers.Dense(1, name="d2"),
        ]
    )
    model.compile(
        **(
            {"optimizer": keras.optimizers.SGD(0.1, momentum=0.5), "loss": "mse", "metrics": ["mae"]}
            | compiled
        )
    )
    return model


def mirrored(replicas=2, **options):
    assert len(jax.devices()) >= 8, "these tests need eight CPU devices"
    return phalanx.MirroredStrategy(devices=[f"cpu:{i}" for i in range(replicas)], **options)


def build_under(strategy, **compiled):
    with strategy.scope():
        return build(**compiled)


def state(model):
    return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]


@pytest.fixture(scope="module")
def both():
    """Run a function on a plain model and on one with two replicas; both start each time as they were built."""
    models = build(), build_under(mirrored())
    for model in models:
        model.optimizer.build(model.trainable_variables)
    starts = [[np.array(v.value) for v in state(model)] for model in models]

    def run(action):
        for model, start in zip(models, starts):
            for variable, value in zip(state(model), start, strict=True):
                variable.assign(value)
        return [action(model) for model in models]

    return run


def assert_close(ours, plain):
    """Equal in type, structure and order of keys; numbers within 1e-5."""
    assert type(ours) is type(plain), (ours, plain)
    if isinstance(plain, dict):
        assert list(ours) == list(plain)
        for key in plain:
            assert_close(ours[key], plain[key])
    elif isinstance(plain, (list, tuple)):
        assert len(ours) == len(plain)
        for one, other in zip(ours, plain):
            assert_close(one, other)
    elif isinstance(plain, (float, np.ndarray, np.floating)):
        np.testing.assert_allclose(ours, plain, **CLOSE)
    else:
        assert ours == plain


HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]


def recorder(async_safe=False):
    """A callback that keeps every call: name, position, and the logs it was given."""

    def heard(name):
        def call(self, *args, **kwargs):
            logs = kwargs.get("logs", args[-1] if args and isinstance(args[-1], dict) else None)
            first = [a for a in args if not isinstance(a, (dict, type(None)))]
            logs = {k: np.asarray(v) if k == "outputs" else v for k, v in (logs or {}).items()}
            self.calls.append((name, tuple(first), sorted(kwargs), logs))

        return call

    def set_params(self, params):
        self.calls.append(("set_params", (), [], dict(params)))
        keras.callbacks.Callback.set_params(self, params)

    body = {name: heard(name) for name in HOOKS} | {"set_params": set_params, "async_safe": async_safe}
    callback = type("Recorder", (keras.callbacks.Callback,), body)()
    callback.calls = []
    return callback


class Do(keras.callbacks.Callback):
    """Runs a function of (callback, batch) after each training batch, or of (callback, epoch) after each epoch."""

    def __init__(self, batch=None, epoch=None):
        super().__init__()
        self.batch, self.epoch, self.seen = batch, epoch, []
        if batch is not None:
            self.on_train_batch_end = lambda at, logs=None: self.batch(self, at)

    def on_epoch_end(self, epoch, logs=None):
        if self.epoch is not None:
            self.epoch(self, epoch)


# ------------------------------------------------------------------------------- order and arguments


def whole_life(model, callback, **fit):
    model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[callback], **fit)
    model.evaluate(X, Y, batch_size=16, verbose=0, callbacks=[callback])
    model.predict(X, batch_size=16, verbose=0, callbacks=[callback])
    return callback.calls


def test_all_calls_of_fit_evaluate_and_predict_come_with_keras_arguments_in_keras_order(both):
    plain, ours = both(lambda model: whole_life(model, recorder(), validation_data=(X[:32], Y[:32])))
    assert [call[:3] for call in ours] == [call[:3] for call in plain]
    names = [call[0] for call in ours]
    assert names.count("on_train_batch_end") == 8 and names.count("on_test_batch_end") == 2 * 2 + 4
    assert names.count("on_predict_batch_end") == 4 and names[-1] == "on_predict_end"
    assert_close([call[3] for call in ours], [call[3] for call in plain])


def test_calls_that_keras_makes_from_its_threads_are_the_same_calls(both):
    plain, ours = both(lambda model: whole_life(model, recorder(async_safe=True)))
    key = lambda call: (call[0], call[1])  # noqa: E731 (threads may swap neighbours)
    assert sorted(map(key, ours)) == sorted(map(key, plain))
    assert {call[0] for call in ours} == {call[0] for call in plain}
    for one, other in zip(sorted(ours, key=key), sorted(plain, key=key)):
        assert_close(one[3], other[3])


def test_calls_with_three_steps_per_execution_are_those_of_keras():
    def life(model):
        callback = recorder()
        model.fit(X[:54], Y[:54], batch_size=6, shuffle=False, verbose=0, callbacks=[callback])
        model.evaluate(X[:36], Y[:36], batch_size=6, verbose=0, callbacks=[callback])
        return callback.calls

    plain = life(build(steps_per_execution=3))
    ours = life(build_under(mirrored(), steps_per_execution=3))
    assert [call[:3] for call in ours] == [call[:3] for call in plain]
    assert [call[1] for call in ours if call[0] == "on_train_batch_end"] == [(2,), (5,), (8,)]
    assert_close([call[3] for call in ours], [call[3] for call in plain])


def test_the_last_batch_of_a_short_execution_has_its_own_index():
    callback = recorder()
    model = build_under(mirrored(), steps_per_execution=3)
    model.fit(X[:20], Y[:20], batch_size=2, shuffle=False, verbose=0, callbacks=[callback])  # 10 batches
    assert [call[1] for call in callback.calls if call[0] == "on_train_batch_end"] == [(2,), (5,), (8,), (9,)]
    assert int(model.optimizer.iterations) == 10


def test_history_has_keras_epochs_params_and_keys(both):
    def run(model):
        history = model.fit(
            X, Y, batch_size=16, epochs=5, initial_epoch=2, verbose=0, shuffle=False, validation_split=0.25
        )
        return history.epoch, history.params, history.history, model.history is history

    plain, ours = both(run)
    assert ours[0] == [2, 3, 4] and ours[3]
    assert_close(ours, plain)


# ------------------------------------------------------------------------------- callbacks that steer


def test_early_stopping_stops_at_the_same_epoch_and_restores_the_same_weights(both):
    def run(model):
        stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
        history = model.fit(
            X, Y, batch_size=16, epochs=9, verbose=0, shuffle=False,
            validation_data=(X[:16], 1 - Y[:16]), callbacks=[stop],
        )  # fmt: skip
        return history.epoch, stop.stopped_epoch, stop.best_epoch, history.history, model.get_weights()

    plain, ours = both(run)
    assert 0 < len(ours[0]) < 9, "the data must make it stop"
    assert_close(ours, plain)


def test_learning_rates_follow_plateaus_and_schedules_as_on_one_device(both):
    def run(model):
        plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0)
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
        history = model.fit(
            X, Y, batch_size=16, epochs=4, verbose=0, shuffle=False, callbacks=[plateau, schedule]
        )
        return history.history, float(model.optimizer.learning_rate)

    plain, ours = both(run)
    assert len(set(ours[0]["learning_rate"])) == 4 and ours[1] < 0.1 * 0.9**4 * 0.6
    assert_close(ours, plain)


def test_a_callback_may_swap_the_learning_rate_in_the_middle_of_an_epoch(both):
    def run(model):
        def swap(callback, batch):
            callback.model.optimizer.learning_rate = 0.1 if batch == 0 else 0.0

        model.fit(X, Y, batch_size=16, verbose=0, shuffle=False, epochs=2, callbacks=[Do(batch=swap)])
        return model.get_weights(), float(model.optimizer.learning_rate)

    plain, ours = both(run)
    assert ours[1] == 0.0
    assert_close(ours, plain)


def test_a_callback_may_stop_training_in_the_middle_of_an_epoch(both):
    def run(model):
        def stop(callback, batch):
            if int(callback.model.optimizer.iterations) == 5:
                callback.model.stop_training = True

        history = model.fit(
            X, Y, batch_size=16, epochs=4, verbose=0, shuffle=False, callbacks=[Do(batch=stop)]
        )
        return history.epoch, history.history, model.get_weights(), int(model.optimizer.iterations)

    plain, ours = both(run)
    assert ours[3] == 5
    assert_close(ours, plain)


def test_terminate_on_nan_ends_at_the_step_of_the_nan(both):
    broken = Y.copy()
    broken[40] = np.nan  # in the third of four batches

    def run(model):
        stop = keras.callbacks.TerminateOnNaN()
        history = model.fit(X, broken, batch_size=16, epochs=3, verbose=0, shuffle=False, callbacks=[stop])
        return history.epoch, int(model.optimizer.iterations)

    plain, ours = both(run)
    assert ours == plain == ([0], 3)


# ------------------------------------------------------------------------------- callbacks that look


def test_weights_read_after_a_batch_are_those_of_that_step(both):
    def run(model):
        look = Do(batch=lambda c, batch: c.seen.append([np.array(w) for w in c.model.get_weights()]))
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0, shuffle=False, callbacks=[look])
        return look.seen

    plain, ours = both(run)
    assert len(ours) == 8
    assert all(not np.array_equal(a[0], b[0]) for a, b in zip(ours, ours[1:])), "each step moves the weights"
    assert_close(ours, plain)


@pytest.mark.parametrize("when", ["batch", "epoch"])
def test_a_callback_may_evaluate_and_predict_while_training(both, when):
    def look(callback, at):
        scores = callback.model.evaluate(X[:32], Y[:32], batch_size=16, verbose=0, return_dict=True)
        callback.seen.append((scores, callback.model.predict(X[:16], verbose=0)))

    def run(model):
        callback = Do(**{when: look})
        history = model.fit(
            X,
            Y,
            batch_size=16,
            epochs=2,
            verbose=0,
            shuffle=False,
            callbacks=[callback],
            validation_split=0.25,
        )
        return callback.seen, history.history, model.get_weights(), int(model.optimizer.iterations)

    plain, ours = both(run)
    assert len(ours[0]) == (6 if when == "batch" else 2)
    assert_close(ours, plain)


def test_a_callback_may_train_the_model_on_a_batch_of_its_own(both):
    def run(model):
        more = Do(epoch=lambda c, epoch: c.seen.append(c.model.train_on_batch(X[:16], Y[:16])))
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0, shuffle=False, callbacks=[more])
        return more.seen, model.get_weights(), int(model.optimizer.iterations)

    plain, ours = both(run)
    assert ours[2] == 10
    assert_close(ours, plain)


def test_a_callback_may_set_weights_in_the_middle_of_an_epoch(both):
    def run(model):
        start = model.get_weights()
        back = Do(batch=lambda c, batch: c.model.set_weights(start) if batch == 1 else None)
        model.fit(X, Y, batch_size=16, epochs=1, verbose=0, shuffle=False, callbacks=[back])
        return model.get_weights()

    plain, ours = both(run)
    assert_close(ours, plain)


def test_a_callback_with_a_plain_model_of_its_own_gets_that_models_numbers():
    other = build()
    before = other.get_weights()
    expected = other.evaluate(X, Y, batch_size=16, verbose=0)
    look = Do(epoch=lambda c, epoch: c.seen.append(other.evaluate(X, Y, batch_size=16, verbose=0)))
    build_under(mirrored()).fit(X, Y, batch_size=16, verbose=0, callbacks=[look])
    assert_close(look.seen, [expected])
    assert_close(other.get_weights(), before)
    assert {len(v.value.sharding.device_set) for v in other.trainable_variables} == {1}, "it stays plain"


def test_a_model_of_another_strategy_keeps_it_when_a_callback_evaluates_it():
    four = mirrored(4)
    other = build_under(four)
    look = Do(epoch=lambda c, epoch: other.evaluate(X, Y, batch_size=16, verbose=0))
    build_under(mirrored(2)).fit(X, Y, batch_size=16, verbose=0, callbacks=[look])
    other.evaluate(X, Y, verbose=0)
    assert {len(v.value.sharding.device_set) for v in other.trainable_variables} == {4}


def test_lambda_callbacks_hear_every_hook(both):
    def run(model):
        heard = []
        hooks = ("on_epoch_begin", "on_epoch_end", "on_train_begin", "on_train_end")
        hooks += ("on_train_batch_begin", "on_train_batch_end")
        spy = {hook: lambda *a, hook=hook, **k: heard.append(hook) for hook in hooks}
        model.fit(X, Y, batch_size=16, verbose=0, callbacks=[keras.callbacks.LambdaCallback(**spy)])
        return heard

    plain, ours = both(run)
    assert len(ours) == 12
    assert ours == plain


# ------------------------------------------------------------------------------- callbacks that write


def test_checkpoints_between_batches_equal_the_live_weights_to_the_bit(tmp_path):
    model = build_under(mirrored())
    live = {}

    def keep(callback, batch):
        live[int(callback.model.optimizer.iterations)] = [np.array(v.value) for v in state(callback.model)]

    save = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}-{batch}.weights.h5"), save_weights_only=True, save_freq=2
    )
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0, callbacks=[save, Do(batch=keep)])
    files = sorted(tmp_path.glob("*.weights.h5"))
    assert len(files) == 4
    fresh = build()
    fresh.optimizer.build(fresh.trainable_variables)
    for file in files:
        fresh.load_weights(file)
        step = int(fresh.optimizer.iterations)
        assert step in (2, 4, 6, 8)
        for saved, wanted in zip(state(fresh), live[step], strict=True):
            np.testing.assert_array_equal(saved.value, wanted)


def test_checkpoints_of_epochs_are_whole_models_equal_to_the_live_one(tmp_path):
    model = build_under(mirrored())
    live = Do(epoch=lambda c, epoch: c.seen.append(c.model.get_weights()))
    save = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0, callbacks=[save, live])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.keras", "2.keras"]
    for epoch, weights in enumerate(live.seen, start=1):
        loaded = keras.models.load_model(tmp_path / f"{epoch}.keras")
        assert int(loaded.optimizer.iterations) == 4 * epoch
        for saved, wanted in zip(loaded.get_weights(), weights):
            np.testing.assert_array_equal(saved, wanted)


def test_csv_logger_writes_one_header_and_one_row_an_epoch(both, tmp_path):
    def run(model):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.csv"
        log = keras.callbacks.CSVLogger(str(file))
        model.fit(X, Y, batch_size=16, epochs=3, verbose=0, shuffle=False, callbacks=[log])
        with file.open() as lines:
            return list(csv.DictReader(lines))

    plain, ours = both(run)
    assert [row["epoch"] for row in ours] == ["0", "1", "2"] and list(ours[0]) == list(plain[0])
    for one, other in zip(ours, plain):
        assert_close([float(one[k]) for k in ("loss", "mae")], [float(other[k]) for k in ("loss", "mae")])


def test_tensorboard_writes_one_event_file(tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("tensorflow", reason="Keras's TensorBoard writes through TensorFlow")
    board = keras.callbacks.TensorBoard(str(tmp_path), update_freq=1)
    build_under(mirrored()).fit(X, Y, batch_size=16, epochs=2, verbose=0, callbacks=[board])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1 and "events" in files[0].name


def test_a_run_broken_off_resumes_at_its_epoch_with_equal_weights(tmp_path):
    def run(model, **options):
        options = {"batch_size": 16, "epochs": 4, "verbose": 0, "shuffle": False} | options
        return model.fit(X, Y, **options)

    class Power(Exception):
        pass

    def cut(callback, batch):
        if int(callback.model.optimizer.iterations) == 10:  # third epoch, second batch of four
            raise Power

    whole = build_under(mirrored())
    run(whole)
    folder = str(tmp_path / "backup")
    with pytest.raises(Power):
        first = build_under(mirrored())
        run(first, callbacks=[keras.callbacks.BackupAndRestore(folder), Do(batch=cut)])
    second = build_under(mirrored())
    history = run(second, callbacks=[keras.callbacks.BackupAndRestore(folder)])
    assert history.epoch == [2, 3]
    assert int(second.optimizer.iterations) == 16
    for resumed, straight in zip(state(second), state(whole), strict=True):
        np.testing.assert_array_equal(resumed.value, straight.value)


# ------------------------------------------------------------------------------- when something breaks


def test_ctrl_c_from_a_callback_leaves_the_model_trained_so_far_and_usable(both):
    def run(model):
        def interrupt(callback, batch):
            if int(callback.model.optimizer.iterations) == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.fit(
                X, Y, batch_size=16, epochs=3, verbose=0, shuffle=False, callbacks=[Do(batch=interrupt)]
            )
        state = int(model.optimizer.iterations), model.get_weights(), model.predict(X[:16], verbose=0)
        history = model.fit(X, Y, batch_size=16, verbose=0, shuffle=False)
        return state, history.history, int(model.optimizer.iterations)

    plain, ours = both(run)
    assert ours[0][0] == 5 and ours[2] == 9
    assert_close(ours, plain)
    assert not phalanx.has_strategy()


def test_ctrl_c_leaves_averaged_weights_where_the_optimizer_averages():
    def interrupt(callback, batch):
        if int(callback.model.optimizer.iterations) == 5:
            raise KeyboardInterrupt

    def run(make):
        model = make(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
        with pytest.raises(KeyboardInterrupt):
            model.fit(
                X, Y, batch_size=16, epochs=3, verbose=0, shuffle=False, callbacks=[Do(batch=interrupt)]
            )
        averages = [v.numpy() for v in model.optimizer._model_variables_moving_average]
        for weight, average in zip(model.trainable_weights, averages, strict=True):
            np.testing.assert_array_equal(weight.numpy(), average)
        return model.get_weights()

    for ours, plain in zip(run(functools.partial(build_under, mirrored())), run(build), strict=True):
        np.testing.assert_allclose(ours, plain, **CLOSE)


def test_ctrl_c_at_any_moment_leaves_the_weights():
    """A step takes the memory of the state before it: an interrupt right then must not lose both.

    `fit` ends by itself, too, because Python swallows an interrupt that comes in a finalizer.
    """
    model = build_under(mirrored())
    model.fit(X, Y, batch_size=16, verbose=0)
    interrupted = 0
    for moment in np.random.default_rng(0).uniform(0.002, 0.05, 40):
        timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            model.fit(X, Y, batch_size=16, epochs=200, verbose=0)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert interrupted > 20
    assert not phalanx.has_strategy()


class Fails(keras.callbacks.Callback):
    """Fails in one hook; listens to no batch, so that Keras starts threads for the progress bar."""

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, self.fail)

    def fail(self, *args, **kwargs):
        raise ArithmeticError("planted")


@pytest.mark.parametrize(
    ("method", "hook"),
    [
        ("fit", "on_train_begin"),
        ("fit", "on_epoch_end"),
        ("fit", "on_test_begin"),
        ("fit", "on_train_end"),
        ("evaluate", "on_test_begin"),
        ("evaluate", "on_test_end"),
        ("predict", "on_predict_begin"),
        ("predict", "on_predict_end"),
    ],
)
def test_a_failing_callback_leaves_no_thread_no_strategy_and_a_whole_model(under_two, method, hook, capsys):
    threads = set(threading.enumerate())
    data = {"fit": (X, Y, 16, 1, 1), "evaluate": (X, Y, 16, 1), "predict": (X, 16, 1)}[method]
    more = {"validation_split": 0.25} if method == "fit" else {}
    with pytest.raises(ArithmeticError, match="planted"):
        getattr(under_two, method)(*data, callbacks=[Fails(hook)], **more)
    capsys.readouterr()
    assert {t for t in threading.enumerate() if not t.daemon} <= threads
    assert not phalanx.has_strategy() and keras.distribution.distribution() is None
    assert all(np.isfinite(w).all() for w in under_two.get_weights())
    assert under_two.predict(X, batch_size=16, verbose=0).shape == (64, 1)


@pytest.fixture(scope="module")
def under_two():
    return build_under(mirrored())


def test_a_generator_that_fails_surfaces_its_own_error_and_the_steps_before_it_count(under_two, capsys):
    before = int(under_two.optimizer.iterations)

    def batches():
        yield X[:16], Y[:16]
        yield X[:16], Y[:16]
        raise OSError("disk gone")

    threads = set(threading.enumerate())
    with pytest.raises(OSError, match="disk gone"):
        under_two.fit(batches(), verbose=1)
    capsys.readouterr()
    assert {t for t in threading.enumerate() if not t.daemon} <= threads
    assert int(under_two.optimizer.iterations) >= before + 1
    assert under_two.predict(X, batch_size=16, verbose=0).shape == (64, 1)


def test_a_keras_callback_list_is_taken_as_it_is(both):
    def run(model):
        callback = recorder()
        calls = keras.callbacks.CallbackList([callback], model=model, add_history=True, epochs=2, steps=4)
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0, shuffle=False, callbacks=calls)
        return [call[:2] for call in callback.calls], model.history.history

    plain, ours = both(run)
    assert_close(ours, plain)
