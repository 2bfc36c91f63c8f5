"""Scopes nest as tf.distribute's do, stay in their thread, and leave nothing behind."""

import logging
import threading

import jax
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import phalanx

X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def mirrored(*ids):
    assert len(jax.devices()) >= 8, "these tests need eight CPU devices"
    return phalanx.MirroredStrategy(devices=[f"cpu:{i}" for i in ids or (0, 1)])


def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def replicas_of(model):
    return {len(v.value.sharding.device_set) for v in model.trainable_variables}


class Spy(keras.layers.Layer):
    """Keeps the sharding with which its input arrives in a compiled step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x):
        jax.debug.inspect_array_sharding(x, callback=self.seen.append)
        return x


# ------------------------------------------------------------------------------- nesting


def test_the_same_strategy_may_be_entered_again_and_left_again():
    strategy = mirrored()
    with strategy.scope():
        with strategy.scope():
            assert phalanx.get_strategy() is strategy
        assert phalanx.get_strategy() is strategy
        assert keras.distribution.distribution() is strategy
    assert not phalanx.has_strategy()


def test_a_different_strategy_inside_is_an_error_that_names_both():
    outer, inner = mirrored(0, 1), mirrored(2, 3)
    with outer.scope():
        with pytest.raises(RuntimeError) as refused:
            with inner.scope():
                raise AssertionError("entered")
        assert isinstance(refused.value, phalanx.ScopeError)
        assert repr(inner) in str(refused.value) and repr(outer) in str(refused.value)
        assert "next:" in str(refused.value)
        assert phalanx.get_strategy() is outer, "the outer scope stands"
        assert keras.distribution.distribution() is outer
    assert not phalanx.has_strategy()


def test_an_equal_strategy_that_is_another_object_is_a_different_one():
    with mirrored(0, 1).scope():
        with pytest.raises(phalanx.ScopeError):
            with mirrored(0, 1).scope():
                pass


def test_a_scope_inside_a_keras_distribution_is_an_error_that_names_both():
    keras_own = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    strategy = mirrored()
    with keras_own.scope():
        with pytest.raises(phalanx.ScopeError, match="DataParallel") as refused:
            with strategy.scope():
                pass
        assert repr(strategy) in str(refused.value)
        assert keras.distribution.distribution() is keras_own
    assert keras.distribution.distribution() is None


def test_a_model_made_in_a_keras_distribution_inside_a_scope_is_an_error_that_names_both():
    keras_own = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    strategy = mirrored()
    with strategy.scope():
        with keras_own.scope():
            with pytest.raises(phalanx.ScopeError, match="DataParallel") as refused:
                build()
        assert repr(strategy) in str(refused.value)
        assert keras.distribution.distribution() is strategy
        build()
    assert keras.distribution.distribution() is None


def test_a_strategy_set_by_keras_is_in_force_until_unset():
    strategy = mirrored()
    keras.distribution.set_distribution(strategy)
    try:
        assert phalanx.get_strategy() is strategy and phalanx.has_strategy()
        model = build()
        with strategy.scope():
            pass
        assert keras.distribution.distribution() is strategy, "a scope puts back what it found"
        with pytest.raises(phalanx.ScopeError):
            with mirrored(2, 3).scope():
                pass
    finally:
        keras.distribution.set_distribution(None)
    assert not phalanx.has_strategy()
    model.fit(X, Y, batch_size=16, verbose=0)
    assert replicas_of(model) == {2}


# ------------------------------------------------------------------------------- threads and exceptions


def in_thread(action):
    found = []

    def run():
        try:
            found.append(action())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def test_a_scope_is_not_seen_from_another_thread():
    with mirrored().scope():
        seen = in_thread(lambda: (phalanx.has_strategy(), phalanx.get_strategy().num_replicas_in_sync))
    assert seen == (False, 1)


def test_two_threads_may_hold_scopes_of_two_strategies_at_once():
    here, there = mirrored(0, 1), mirrored(2, 3, 4)

    def other():
        with there.scope():
            return phalanx.get_strategy() is there, replicas_of(build())

    with here.scope():
        assert in_thread(other) == (True, {3})
        assert phalanx.get_strategy() is here
        assert replicas_of(build()) == {2}


def test_a_model_trains_on_its_replicas_in_another_thread():
    with mirrored().scope():
        model = build()
    in_thread(lambda: model.fit(X, Y, batch_size=16, verbose=0))
    assert replicas_of(model) == {2} and int(model.optimizer.iterations) == 4


def test_an_exception_inside_a_scope_closes_it():
    strategy = mirrored()
    with pytest.raises(KeyError, match="mine"):
        with strategy.scope():
            with strategy.scope():
                raise KeyError("mine")
    assert not phalanx.has_strategy() and keras.distribution.distribution() is None
    with mirrored(2, 3).scope():
        pass


def test_a_step_that_cannot_be_traced_leaves_no_strategy_and_the_weights_as_they_were():
    class Breaks(keras.layers.Layer):
        armed = False

        def call(self, x):
            if self.armed:
                raise ArithmeticError("planted")
            return x

    with mirrored().scope():
        breaks = Breaks()
        model = keras.Sequential([keras.Input((8,)), breaks, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.evaluate(X[:16], Y[:16], batch_size=16, verbose=0)  # builds what fit would build
    before = model.get_weights()
    breaks.armed = True
    calls = {
        "fit": lambda: model.fit(X, Y, batch_size=16, verbose=0),
        "evaluate": lambda: model.evaluate(X, Y, batch_size=32, verbose=0),
        "predict": lambda: model.predict(X, batch_size=16, verbose=0),
        "train_on_batch": lambda: model.train_on_batch(X, Y),
        "predict_on_batch": lambda: model.predict_on_batch(X),
    }
    for call in calls.values():
        with pytest.raises(ArithmeticError, match="planted"):
            call()
        assert not phalanx.has_strategy() and keras.distribution.distribution() is None
    for kept, weight in zip(model.get_weights(), before):
        np.testing.assert_array_equal(kept, weight)
    breaks.armed = False
    model.fit(X, Y, batch_size=16, verbose=0)


# ------------------------------------------------------------------------------- clear_session


def test_clear_session_inside_a_scope_keeps_the_strategy():
    strategy = mirrored()
    with strategy.scope():
        keras.utils.clear_session()
        assert phalanx.get_strategy() is strategy
        model = build()
        assert keras.distribution.distribution() is strategy
    model.fit(X, Y, batch_size=16, verbose=0)
    assert replicas_of(model) == {2}
    assert not phalanx.has_strategy() and keras.distribution.distribution() is None


def test_clear_session_before_a_fit_outside_does_not_lose_the_models_strategy():
    with mirrored().scope():
        model = build()
    keras.utils.clear_session()
    model.fit(X, Y, batch_size=16, verbose=0)
    assert replicas_of(model) == {2}


def test_clear_session_inside_a_running_fit_changes_nothing():
    with mirrored().scope():
        model = build()
    clear = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: keras.utils.clear_session())
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0, callbacks=[clear])
    assert replicas_of(model) == {2} and int(model.optimizer.iterations) == 8
    assert keras.distribution.distribution() is None


# ------------------------------------------------------------------------------- fit uses all replicas


def test_fit_after_the_scope_splits_each_batch_over_all_replicas():
    with mirrored(0, 1, 2, 3).scope():
        spy = Spy()
        model = keras.Sequential([keras.Input((8,)), spy, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for call in (model.fit, model.evaluate):
        spy.seen.clear()
        call(X, Y, batch_size=16, verbose=0)
        assert [(s.spec, len(s.device_set)) for s in spy.seen] == [(PartitionSpec("data"), 4)]
    spy.seen.clear()
    model.predict(X, batch_size=16, verbose=0)
    assert [(s.spec, len(s.device_set)) for s in spy.seen] == [(PartitionSpec("data"), 4)]


def test_a_model_made_and_compiled_outside_and_fitted_inside_uses_all_replicas():
    strategy = mirrored(0, 1, 2, 3)
    spy = Spy()
    model = keras.Sequential([keras.Input((8,)), spy, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with strategy.scope():
        model.fit(X, Y, batch_size=16, verbose=0)
    assert [(s.spec, len(s.device_set)) for s in spy.seen] == [(PartitionSpec("data"), 4)]
    assert replicas_of(model) == {4}


def test_a_model_compiled_inside_and_made_outside_uses_all_replicas():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    with mirrored().scope():
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=16, verbose=0)
    assert replicas_of(model) == {2}


def test_during_fit_the_strategy_is_in_force_for_layers_and_callbacks():
    strategy = mirrored()
    seen = []

    class Asks(keras.layers.Layer):
        def call(self, x):
            seen.append(phalanx.get_strategy())
            return x

    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), Asks(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    seen.clear()
    ask = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(phalanx.get_strategy()))
    model.fit(X, Y, batch_size=16, verbose=0, callbacks=[ask])
    assert len(seen) >= 2 and set(map(id, seen)) == {id(strategy)}


# ------------------------------------------------------------------------------- models that stand outside


def test_a_model_outside_trains_on_one_device_and_the_log_says_so_once(caplog):
    model = build()
    model.fit(X, Y, batch_size=16, verbose=0)  # the word about strategies of earlier tests is spoken here
    strategy = mirrored()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="phalanx"):
        model.fit(X, Y, batch_size=16, verbose=0)
        model.fit(X, Y, batch_size=16, verbose=0)
    assert replicas_of(model) == {1}
    (said,) = [record.getMessage() for record in caplog.records if repr(strategy) in record.getMessage()]
    assert repr(model.name) in said and "one device" in said
    lines = said.splitlines()
    assert len(lines) == 3 and lines[1].startswith("  received:") and lines[2].startswith("  next:")
    assert "strategy.scope()" in lines[2]


def test_a_plain_model_beside_a_used_strategy_is_nobodys_mistake(caplog):
    plain = build()
    plain.fit(X, Y, batch_size=16, verbose=0)
    caplog.clear()
    strategy = mirrored()
    with strategy.scope():
        build()
    with caplog.at_level(logging.WARNING, logger="phalanx"):
        plain.fit(X, Y, batch_size=16, verbose=0)
    assert not [r for r in caplog.records if r.name == "phalanx"]


def test_a_strategy_whose_scope_held_only_a_fit_was_used_and_is_not_called_unused(caplog):
    plain, moved = build(), build()
    plain.fit(X, Y, batch_size=16, verbose=0)
    caplog.clear()
    strategy = mirrored()
    with strategy.scope():
        moved.fit(X, Y, batch_size=16, verbose=0)
    assert replicas_of(moved) == {2}
    with caplog.at_level(logging.WARNING, logger="phalanx"):
        plain.fit(X, Y, batch_size=16, verbose=0)
    assert not [r for r in caplog.records if r.name == "phalanx"]
