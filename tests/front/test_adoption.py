"""What was made elsewhere is moved onto the replicas with its values, or refused; never half."""

import copy
import pickle

import jax
import keras
import numpy as np
import pytest

import phalanx

X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def mirrored(replicas=4):
    assert len(jax.devices()) >= 8, "these tests need eight CPU devices"
    return phalanx.MirroredStrategy(devices=[f"cpu:{i}" for i in range(replicas)])


def make():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, activation="relu", name="d1"),
            keras.layers.Dense(1, name="d2"),
        ]
    )


def build():
    model = make()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    return model


def fit(model):
    return model.fit(X, Y, batch_size=16, epochs=2, verbose=0, shuffle=False).history


def state(model):
    return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]


def replicas_of(model):
    return {len(v.value.sharding.device_set) for v in state(model)}


def assert_same_bits(model, other):
    for one, two in zip(state(model), state(other), strict=True):
        np.testing.assert_array_equal(one.value, two.value)


@pytest.fixture(scope="module")
def all_inside():
    """The run whose numbers the others must give: everything made inside the scope."""
    with mirrored().scope():
        model = build()
    return model, fit(model)


# ------------------------------------------------------------------------------- outside, inside


def test_optimizer_and_metrics_outside_model_inside_is_the_all_inside_run(all_inside):
    optimizer, metric = keras.optimizers.SGD(0.1, momentum=0.5), keras.metrics.MeanAbsoluteError()
    with mirrored().scope():
        model = make()
        model.compile(optimizer, "mse", metrics=[metric])
    assert fit(model) == all_inside[1]
    assert_same_bits(model, all_inside[0])
    assert replicas_of(model) == {4}


def test_model_outside_optimizer_and_metrics_inside_is_the_all_inside_run(all_inside):
    model = make()
    with mirrored().scope():
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=[keras.metrics.MeanAbsoluteError()]
        )
    assert fit(model) == all_inside[1]
    assert_same_bits(model, all_inside[0])
    assert replicas_of(model) == {4}


def test_everything_outside_and_fit_inside_is_the_all_inside_run(all_inside):
    model = build()
    model.optimizer.build(model.trainable_variables)
    with mirrored().scope():
        assert fit(model) == all_inside[1]
    assert_same_bits(model, all_inside[0])
    assert replicas_of(model) == {4}


def test_a_model_with_a_past_on_one_device_goes_on_with_its_slots(all_inside):
    model = build()
    options = {"batch_size": 16, "verbose": 0, "shuffle": False}
    model.fit(X, Y, **options)
    with mirrored().scope():
        history = model.fit(X, Y, **options).history
    np.testing.assert_allclose(history["loss"], all_inside[1]["loss"][1:], atol=1e-6)
    for one, two in zip(state(model), state(all_inside[0]), strict=True):
        np.testing.assert_allclose(one.value, two.value, atol=1e-6)
    assert int(model.optimizer.iterations) == 8


def test_compiling_outside_anew_keeps_the_strategy_of_the_model():
    with mirrored(2).scope():
        model = build()
    model.compile("sgd", "mse")
    fit(model)
    assert replicas_of(model) == {2}


# ------------------------------------------------------------------------------- from strategy to strategy


def test_a_model_moves_to_a_smaller_strategy_and_predicts_the_same():
    with mirrored(4).scope():
        model = build()
    fit(model)
    before = model.predict(X, batch_size=16, verbose=0)
    with mirrored(2).scope():
        after = model.predict(X, batch_size=16, verbose=0)
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)
    fit(model)
    assert replicas_of(model) == {2}


def test_a_trained_model_moves_to_one_device_and_back():
    with mirrored(4).scope():
        model = build()
    fit(model)
    expected = model.evaluate(X, Y, batch_size=16, verbose=0)
    with phalanx.OneDeviceStrategy("cpu:5").scope():
        scores = model.evaluate(X, Y, batch_size=16, verbose=0)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    with mirrored(4).scope():
        fit(model)
    assert replicas_of(model) == {4}


# ------------------------------------------------------------------------------- refused, and nothing moved


def test_variables_without_values_are_refused_by_path_and_nothing_moves():
    layers = [keras.Input((8,)), *(keras.layers.Dense(8, name=f"d{i}") for i in range(4))]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    lost, kept = model.trainable_variables[:7], model.trainable_variables[7:]
    for variable in lost:
        variable.value.delete()
    strategy = mirrored()
    with strategy.scope():
        for call in (fit, lambda m: m.predict(X, verbose=0)):
            with pytest.raises(phalanx.ScopeError) as refused:
                call(model)
    text = str(refused.value)
    assert "7 variables" in text
    assert [v.path in text for v in lost] == [True] * 5 + [False] * 2
    assert not any(v.path in text for v in kept)
    assert "load_weights" in text.split("next:")[1]
    for variable in [*kept, *model.optimizer.variables]:
        assert len(variable.value.sharding.device_set) == 1, f"{variable.path} was moved"
    assert not phalanx.has_strategy()


# ------------------------------------------------------------------------------- loaded and copied models


def test_a_model_loaded_inside_the_scope_goes_on_on_all_replicas(all_inside, tmp_path):
    first = build()
    first.fit(X, Y, batch_size=16, verbose=0, shuffle=False)
    first.save(tmp_path / "m.keras")
    with mirrored().scope():
        model = keras.models.load_model(tmp_path / "m.keras")
    model.fit(X, Y, batch_size=16, verbose=0, shuffle=False)
    assert replicas_of(model) == {4} and int(model.optimizer.iterations) == 8
    for one, two in zip(state(model), state(all_inside[0]), strict=True):
        np.testing.assert_allclose(one.value, two.value, atol=1e-6)


def test_a_clone_inside_the_scope_belongs_to_it_and_shares_no_variable(all_inside):
    source = all_inside[0]
    with mirrored(2).scope():
        clone = keras.models.clone_model(source)
        clone.compile("sgd", "mse")
    clone.set_weights(source.get_weights())
    before = source.get_weights()
    fit(clone)
    assert replicas_of(clone) == {2}
    for kept, weight in zip(source.get_weights(), before):
        np.testing.assert_array_equal(kept, weight)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_a_copy_made_outside_has_the_same_bits_and_one_made_inside_all_replicas(all_inside, copied):
    source = all_inside[0]
    outside = copied(source)
    for one, two in zip(outside.get_weights(), source.get_weights()):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(
        outside.predict(X, batch_size=16, verbose=0), source.predict(X, batch_size=16, verbose=0), atol=1e-6
    )
    with mirrored(2).scope():
        inside = copied(source)
    fit(inside)
    assert replicas_of(inside) == {2}
    assert int(inside.optimizer.iterations) == int(source.optimizer.iterations) + 8


# ------------------------------------------------------------------------------- models in models


def test_a_model_inside_a_model_trains_with_it():
    def nest():
        inner = make()
        outer = keras.Sequential([keras.Input((8,)), inner, keras.layers.Dense(1)])
        outer.compile(keras.optimizers.SGD(0.1), "mse")
        return outer

    plain = nest()
    with mirrored(2).scope():
        ours = nest()
    plain_history, history = fit(plain), fit(ours)
    np.testing.assert_allclose(history["loss"], plain_history["loss"], atol=1e-6)
    for one, two in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
    inner = ours.layers[0]
    np.testing.assert_allclose(inner.predict(X, batch_size=16, verbose=0), inner(X), atol=1e-6)


def test_an_inner_model_made_outside_moves_with_the_outer_one_and_still_predicts():
    inner = make()
    before = inner.predict(X, batch_size=16, verbose=0)
    with mirrored(2).scope():
        outer = keras.Sequential([keras.Input((8,)), inner, keras.layers.Dense(1)])
        outer.compile(keras.optimizers.SGD(0.0), "mse")
    fit(outer)
    assert replicas_of(outer) == {2}
    np.testing.assert_allclose(inner.predict(X, batch_size=16, verbose=0), before, atol=1e-6)


def test_two_models_that_share_a_layer_share_its_training():
    def pair():
        keras.utils.set_random_seed(0)
        shared = keras.layers.Dense(4, name="shared")
        models = [keras.Sequential([keras.Input((8,)), shared, keras.layers.Dense(1)]) for _ in range(2)]
        for model in models:
            model.compile(keras.optimizers.SGD(0.1), "mse")
        return models

    plain = pair()
    with mirrored(2).scope():
        ours = pair()
    for models in (plain, ours):
        fit(models[0])
        fit(models[1])
        fit(models[0])
    assert ours[0].layers[0] is ours[1].layers[0]
    for one, two in zip(plain, ours):
        for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
            np.testing.assert_allclose(b, a, atol=1e-5)


def test_models_of_two_strategies_that_share_a_layer_take_turns():
    keras.utils.set_random_seed(0)
    shared = keras.layers.Dense(4, name="shared")
    four, two = mirrored(4), mirrored(2)
    models = []
    for strategy in (four, two):
        with strategy.scope():
            models.append(keras.Sequential([keras.Input((8,)), shared, keras.layers.Dense(1)]))
            models[-1].compile(keras.optimizers.SGD(0.1), "mse")
    for _ in range(2):
        for model, replicas in zip(models, (4, 2)):
            fit(model)
            assert replicas_of(model) == {replicas}
            assert len(shared.kernel.value.sharding.device_set) == replicas
