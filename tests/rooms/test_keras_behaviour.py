"""What users know of Keras's methods holds under a strategy: forms, settings, habits."""

import jax
import keras
import numpy as np
import pytest

import phalanx

X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def layers():
    return [
        keras.Input((8,)),
        keras.layers.Dense(8, activation="relu", name="d1"),
        keras.layers.Dense(1, name="d2"),
    ]


def build(cls=keras.Sequential, **compiled):
    keras.utils.set_random_seed(0)
    model = cls(layers())
    model.compile(**({"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", "metrics": ["mae"]} | compiled))
    return model


def mirrored(replicas=2):
    assert len(jax.devices()) >= 8, "these tests need eight CPU devices"
    return phalanx.MirroredStrategy(devices=[f"cpu:{i}" for i in range(replicas)])


def build_under(strategy, cls=keras.Sequential, **compiled):
    with strategy.scope():
        return build(cls, **compiled)


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


def anew(action, **compiled):
    """Run a function on two models made for it, one plain, one with two replicas."""
    return action(build(**compiled)), action(build_under(mirrored(), **compiled))


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
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5)
    else:
        assert ours == plain


def fit(model, **options):
    options = {"batch_size": 16, "verbose": 0, "shuffle": False} | options
    return model.fit(X, Y, **options).history


# ------------------------------------------------------------------------------- compile's settings


def everything(model):
    x, y = X[:18], Y[:18]  # 16 and 2 rows
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False).history
    scores = model.evaluate(x, y, batch_size=16, verbose=0)
    return history, scores, model.predict(x, batch_size=16, verbose=0), model.get_weights()


@pytest.fixture(scope="module")
def compiled_on_one_device():
    return everything(build())


@pytest.mark.parametrize("setting", ["run_eagerly=True", "jit_compile=False"])
def test_steps_without_jit_give_the_numbers_of_one_device(compiled_on_one_device, setting):
    name, value = setting.split("=")
    assert_close(everything(build_under(mirrored(), **{name: value == "True"})), compiled_on_one_device)


def test_run_eagerly_shows_the_user_real_numbers():
    seen = []

    class Looks(keras.layers.Layer):
        def call(self, x):
            if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
                seen.append(float(x[0, 0]))
            return x

    with mirrored().scope():
        model = keras.Sequential([keras.Input((8,)), Looks(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    model.evaluate(X[:32], Y[:32], batch_size=16, verbose=0)
    np.testing.assert_allclose(seen, [X[0, 0], X[16, 0]])


def test_several_steps_per_execution_are_the_same_updates():
    def run(model):
        history = model.fit(
            X[:50], Y[:50], batch_size=16, verbose=0, shuffle=False
        )  # 3 full batches and 2 rows
        return history.history, int(model.optimizer.iterations), model.get_weights()

    ours = run(build_under(mirrored(), steps_per_execution=3))
    plain = run(build())
    assert ours[1] == 4
    assert_close(ours, plain)


def test_a_model_can_be_compiled_anew_between_fits():
    def run(model):
        first = fit(model)
        model.compile(keras.optimizers.Adam(0.01), "mae")
        return first, fit(model), int(model.optimizer.iterations), model.get_weights()

    plain, ours = anew(run)
    assert ours[2] == 4, "a new optimizer counts anew"
    assert_close(ours, plain)


def test_frozen_layers_stay_still_after_compile_and_the_others_move():
    def run(model):
        fit(model)
        before = model.get_weights()
        model.layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse")
        fit(model)
        return before, model.get_weights()

    plain, ours = anew(run)
    before, after = ours
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[2], after[2])
    assert_close(ours, plain)


def test_lora_after_a_first_fit_trains_its_factors_alone():
    def run(model):
        fit(model)
        model.layers[0].enable_lora(2)
        frozen = np.array(model.layers[0]._kernel.value)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        history = fit(model)
        np.testing.assert_array_equal(frozen, model.layers[0]._kernel.value)
        return history, [np.array(v.value) for v in model.trainable_variables]

    plain, ours = anew(run)
    assert len(ours[1]) == 5 and np.abs(ours[1][2]).max() > 0
    assert_close(ours, plain)


# ------------------------------------------------------------------------------- fit's settings


def test_initial_epoch_counts_from_there(both):
    plain, ours = both(lambda model: fit(model, epochs=4, initial_epoch=3))
    assert len(ours["loss"]) == 1
    assert_close(ours, plain)


@pytest.mark.parametrize("frequency", [2, [1, 3]], ids=["every second", "listed"])
def test_validation_runs_in_the_epochs_asked_for(both, frequency):
    plain, ours = both(
        lambda model: fit(model, epochs=4, validation_data=(X[:32], Y[:32]), validation_freq=frequency)
    )
    assert len(ours["val_loss"]) == 2 and len(ours["loss"]) == 4
    assert_close(ours, plain)


def test_fitting_twice_goes_on_where_the_first_fit_ended(both):
    plain, ours = both(lambda model: [fit(model), fit(model), int(model.optimizer.iterations)])
    assert ours[2] == 8 and ours[1]["loss"] < ours[0]["loss"]
    assert_close(ours, plain)


def test_a_learning_rate_set_between_fits_is_used(both):
    def run(model):
        fit(model)
        model.optimizer.learning_rate = 0.0
        still = model.get_weights()
        fit(model)
        np.testing.assert_array_equal(still[0], model.get_weights()[0])
        model.optimizer.learning_rate = 0.05
        return fit(model), model.get_weights()

    plain, ours = both(run)
    assert_close(ours, plain)


def test_a_learning_rate_that_is_not_finite_is_refused_before_any_step():
    model = build_under(mirrored())
    model.optimizer.learning_rate = float("nan")
    before = model.get_weights()
    with pytest.raises(phalanx.SettingError, match="learning_rate=nan") as refused:
        fit(model)
    assert "next:" in str(refused.value)
    np.testing.assert_array_equal(before[0], model.get_weights()[0])


def test_verbose_2_prints_each_epoch_once(both, capsys):
    def run(model):
        capsys.readouterr()
        fit(model, epochs=2, verbose=2)
        return [line.split(" - ")[0] for line in capsys.readouterr().out.splitlines()]

    plain, ours = both(run)
    assert ours == plain == ["Epoch 1/2", "4/4", "Epoch 2/2", "4/4"]


def test_the_progress_bar_counts_global_batches(both, capsys):
    def run(model):
        capsys.readouterr()
        fit(model, verbose=1)
        return capsys.readouterr().out

    plain, ours = both(run)
    assert "4/4" in ours and "5/" not in ours
    assert ours.count("Epoch 1") == plain.count("Epoch 1")


@pytest.mark.filterwarnings("ignore:Limiting")
def test_keras_caps_on_epochs_and_steps_hold(both):
    def run(model):
        keras.config.set_max_epochs(2)
        keras.config.set_max_steps_per_epoch(2)
        try:
            history = fit(model, epochs=5)
            rows = model.predict(X, batch_size=16, verbose=0).shape[0]
        finally:
            keras.config.set_max_epochs(None)
            keras.config.set_max_steps_per_epoch(None)
        return history, int(model.optimizer.iterations), rows

    plain, ours = both(run)
    assert ours[1:] == (4, 32)
    assert_close(ours, plain)


def test_a_cap_on_epochs_is_said_as_keras_says_it():
    keras.config.set_max_epochs(1)
    try:
        with pytest.warns(UserWarning, match="Limiting epochs to 1"):
            fit(build_under(mirrored()), epochs=2)
    finally:
        keras.config.set_max_epochs(None)


def test_class_weight_and_sample_weight_are_those_of_one_device(both):
    def run(model):
        weight = np.linspace(0, 2, 64).astype("float32")
        return fit(model, class_weight={0: 1.0, 1: 3.0}), fit(model, sample_weight=weight)

    plain, ours = both(run)
    assert_close(ours, plain)


def test_shuffled_rows_come_in_keras_order_for_a_seed(both):
    def run(model):
        keras.utils.set_random_seed(7)
        return fit(model, shuffle=True, epochs=2), model.get_weights()

    plain, ours = both(run)
    assert_close(ours, plain)


# ------------------------------------------------------------------------------- single batches


def test_batch_methods_return_keras_forms(both):
    def run(model):
        x, y = X[:16], Y[:16]
        return [
            model.train_on_batch(x, y),
            model.train_on_batch(x, y, return_dict=True),
            model.train_on_batch(x, y, sample_weight=np.ones(16, "float32") * 0.5),
            model.train_on_batch(x, y, class_weight={0: 1.0, 1: 2.0}),
            model.test_on_batch(x, y),
            model.test_on_batch(x, y, return_dict=True),
            model.predict_on_batch(x),
            model.evaluate(x, y, batch_size=16, verbose=0),
            model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True),
            int(model.optimizer.iterations),
        ]

    plain, ours = both(run)
    assert ours[-1] == 4
    assert_close(ours, plain)


def test_without_metrics_the_loss_alone_has_keras_form():
    def run(model):
        return [
            model.train_on_batch(X[:16], Y[:16]),
            model.test_on_batch(X[:16], Y[:16]),
            model.evaluate(X[:16], Y[:16], batch_size=16, verbose=0),
            model.evaluate(X[:16], Y[:16], batch_size=16, verbose=0, return_dict=True),
        ]

    plain, ours = anew(run, metrics=None)
    assert_close(ours, plain)


def test_a_batch_smaller_than_the_replicas_counts_its_rows_once():
    def run(model):
        return model.train_on_batch(X[:3], Y[:3]), model.predict_on_batch(X[:1]), model.get_weights()

    plain = run(build())
    ours = run(build_under(mirrored(8)))
    assert_close(ours, plain)


# ------------------------------------------------------------------------------- without fit


def test_evaluate_and_predict_work_before_any_fit():
    def run(model):
        return model.evaluate(X, Y, batch_size=16, verbose=0), model.predict(X, batch_size=16, verbose=0)

    plain, ours = anew(run)
    assert_close(ours, plain)


def test_predict_needs_no_compile_and_the_rest_says_so():
    keras.utils.set_random_seed(0)
    with mirrored().scope():
        model = keras.Sequential(layers())
    np.testing.assert_allclose(model.predict(X, batch_size=16, verbose=0), model(X), atol=1e-5)
    for call in (
        lambda: fit(model),
        lambda: model.evaluate(X, Y, verbose=0),
        lambda: model.train_on_batch(X, Y),
    ):
        with pytest.raises(ValueError, match="compile"):
            call()


def test_a_call_on_numpy_rows_and_set_weights_work_on_replicated_variables(both):
    def run(model):
        fit(model)
        weights = [w * 0.5 for w in model.get_weights()]
        model.set_weights(weights)
        out = np.array(model(X[:5]))
        return out, fit(model), model.get_weights(), model.count_params()

    plain, ours = both(run)
    assert_close(ours, plain)


def test_weights_set_by_the_user_lie_on_every_replica():
    model = build_under(mirrored(2))
    fit(model)
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    fit(model)
    assert {len(v.value.sharding.device_set) for v in state(model)} == {2}


def test_the_summary_is_that_of_keras(both):
    def run(model):
        lines = []
        model.summary(print_fn=lines.append)
        return "\n".join(lines).split("\n", 1)[1]

    plain, ours = both(run)
    assert "Dense" in ours
    assert ours == plain


# ------------------------------------------------------------------------------- overridden methods


class OwnFit(keras.Sequential):
    """Overrides fit and evaluate, as user code does to add defaults."""

    def fit(self, *args, **kwargs):
        return super().fit(*args, **({"batch_size": 16, "verbose": 0, "shuffle": False} | kwargs))

    def evaluate(self, *args, **kwargs):
        return {"mine": super().evaluate(*args, **kwargs)}


def test_an_overridden_fit_that_calls_super_trains_on_all_replicas():
    def run(model):
        return model.fit(X, Y).history, model.evaluate(X, Y, verbose=0, batch_size=16)

    plain = run(build(OwnFit))
    model = build_under(mirrored(4), OwnFit)
    assert_close(run(model), plain)
    assert {len(v.value.sharding.device_set) for v in model.trainable_variables} == {4}


class OwnSteps(keras.Sequential):
    """Overrides the steps in Keras's JAX form."""

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return logs | {"rows": jax.numpy.float32(data[0].shape[0])}, state

    def test_step(self, state, data):
        logs, state = super().test_step(state, data)
        return logs | {"rows": jax.numpy.float32(data[0].shape[0])}, state

    def predict_step(self, state, data):
        outputs, non_trainable = super().predict_step(state, data)
        return outputs * 2, non_trainable


def test_overridden_steps_see_the_true_rows_of_the_global_batch():
    def run(model):
        return (
            model.fit(X[:19], Y[:19], batch_size=16, verbose=0, shuffle=False).history,
            model.evaluate(X[:16], Y[:16], verbose=0, return_dict=True),
            model.predict(X[:16], verbose=0),
        )

    plain, ours = run(build(OwnSteps)), run(build_under(mirrored(), OwnSteps))
    assert ours[0]["rows"] == [3.0]
    assert_close(ours, plain)
