"""A recipe gives each strategy and optimizer its numbers, and Keras applies them update by update."""

import keras
import numpy as np
import pytest

import phalanx
from phalanx.errors import PhalanxWarning, SettingError

X = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
SGD = keras.optimizers.SGD
schedules = keras.optimizers.schedules


def mirrored(replicas, **options):
    return phalanx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], **options)


def row_17(rule="linear"):
    recipe = phalanx.Recipe(batch_per_replica=32, learning_rate=0.1, base_batch=32, rule=rule, warmup_steps=5)
    return recipe.plan(mirrored(4), optimizer="sgd")


class Rates(keras.callbacks.Callback):
    """The rate that each batch was trained with, read before it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate))


def model_with(strategy, optimizer):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
    return model


def test_reports_row_17_on_four_replicas():
    plan = row_17()
    assert plan.global_batch == 128
    rates = [float(plan.learning_rate(step)) for step in range(7)]
    assert rates == pytest.approx([0.1, 0.16, 0.22, 0.28, 0.34, 0.4, 0.4], abs=1e-7)
    assert float(row_17("sqrt").learning_rate(5)) == pytest.approx(0.2, abs=1e-7)


def test_the_rate_is_applied_update_by_update_and_a_second_compile_goes_on():
    plan, rates = row_17(), Rates()
    optimizer = plan.make_optimizer(SGD, momentum=0.9)
    model = model_with(mirrored(4), optimizer)
    model.fit(X, Y, batch_size=32, verbose=0, callbacks=[rates])
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=32, verbose=0, callbacks=[rates])
    assert rates.seen == pytest.approx([0.1, 0.16, 0.22, 0.28, 0.34, 0.4], abs=1e-7)


def test_a_saved_model_resumes_in_the_middle_of_the_warmup(tmp_path):
    model = model_with(mirrored(4), row_17().make_optimizer(SGD))
    model.fit(X, Y, batch_size=32, verbose=0)
    model.save(tmp_path / "m.keras")
    rates = Rates()
    with mirrored(2).scope():
        again = keras.models.load_model(tmp_path / "m.keras")
    again.fit(X, Y, batch_size=32, verbose=0, callbacks=[rates])
    assert rates.seen == pytest.approx([0.28, 0.34, 0.4], abs=1e-7)
    assert "phalanx" not in str(model.get_config()) + str(model.optimizer.get_config())


def test_accumulated_batches_count_once():
    """Two batches of 32 rows make one update of 64: factor 2, and the warmup moves every second batch."""
    recipe = phalanx.Recipe(
        batch_per_replica=16, learning_rate=0.1, base_batch=32, rule="linear", warmup_steps=2
    )
    plan = recipe.plan(mirrored(2), optimizer=SGD, accumulation=2, dataset_size=96)
    assert (plan.global_batch, plan.update_batch, plan.factor, plan.updates_per_epoch) == (32, 64, 2, 1.5)
    rates = Rates()
    model = model_with(mirrored(2), plan.make_optimizer(SGD))
    model.fit(X, Y, batch_size=plan.global_batch, epochs=2, verbose=0, callbacks=[rates])
    assert rates.seen == pytest.approx([0.1, 0.1, 0.15, 0.15, 0.2, 0.2], abs=1e-7)
    assert int(model.optimizer.iterations) == 3


def test_a_schedule_is_scaled_and_warmed_up_and_survives_a_save(tmp_path):
    base = schedules.PiecewiseConstantDecay([3], [0.1, 0.01])
    recipe = phalanx.Recipe(batch_per_replica=32, learning_rate=base, base_batch=32, warmup_steps=2)
    plan = recipe.plan(mirrored(4), optimizer="sgd")
    wanted = [0.1, 0.25, 0.4, 0.4, 0.04]
    assert [float(plan.learning_rate(step)) for step in range(5)] == pytest.approx(wanted, abs=1e-7)
    model = model_with(mirrored(4), plan.make_optimizer(SGD))
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras").optimizer
    assert [float(again._learning_rate(step)) for step in range(5)] == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize(
    "base",
    [
        schedules.CosineDecay(0.1, 10, warmup_target=0.2, warmup_steps=3),
        schedules.CosineDecayRestarts(0.1, 4),
        schedules.ExponentialDecay(0.1, 5, 0.5),
        schedules.InverseTimeDecay(0.1, 5, 0.5),
        schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.01, 0.001]),
        schedules.PolynomialDecay(0.1, 8),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_kerass_schedules_without_warmup_stay_kerass(base):
    plan = phalanx.Recipe(batch_per_replica=32, learning_rate=base, base_batch=32).plan(mirrored(4), "sgd")
    assert type(plan.learning_rate) is type(base)
    steps = range(12)
    wanted = [4 * float(base(step)) for step in steps]
    assert [float(plan.learning_rate(step)) for step in steps] == pytest.approx(wanted, abs=1e-6)


def test_a_users_own_schedule_is_scaled_too():
    class Half(schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 / 2**step

    plan = phalanx.Recipe(batch_per_replica=32, learning_rate=Half(), base_batch=32).plan(mirrored(4), "sgd")
    assert [float(plan.learning_rate(step)) for step in range(3)] == pytest.approx([0.4, 0.2, 0.1])


def test_a_rate_made_from_the_number_of_updates_gets_that_number():
    asked = []

    def rate(updates):
        asked.append(updates)
        return schedules.CosineDecay(0.1, updates)

    recipe = phalanx.Recipe(batch_per_replica=32, learning_rate=rate, rule="none")
    plan = recipe.plan(mirrored(2), "sgd", dataset_size=130, epochs=4)
    assert asked == [plan.total_updates] == [12]
    assert float(plan.learning_rate(12)) == pytest.approx(0, abs=1e-7)
    with pytest.raises(SettingError, match="dataset_size"):
        recipe.plan(mirrored(2), "sgd")


def test_adam_gets_its_moments_and_the_optimizers_own_are_the_base():
    recipe = phalanx.Recipe(batch_per_replica=64, learning_rate=1e-3)
    plan = recipe.plan(mirrored(4), optimizer="adam")
    assert plan.optimizer_updates == pytest.approx({"beta_1": 0.6, "beta_2": 0.996, "epsilon": 5e-8})
    assert float(plan.learning_rate(0)) == pytest.approx(2e-3)
    own = recipe.plan(mirrored(4), optimizer=keras.optimizers.AdamW(beta_2=0.99))
    assert own.optimizer_updates["beta_2"] == pytest.approx(0.96)
    made = plan.make_optimizer(keras.optimizers.Adam, global_clipnorm=1.0)
    assert (made.beta_1, made.global_clipnorm) == (pytest.approx(0.6), 1.0)
    assert (
        phalanx.Recipe(batch_per_replica=64, learning_rate=1e-3, moments=False)
        .plan(mirrored(4), optimizer="adam")
        .optimizer_updates
        == {}
    )


def test_an_instances_own_settings_are_kept():
    recipe = phalanx.Recipe(batch_per_replica=32, learning_rate=0.1, base_batch=32)
    own = SGD(momentum=0.9, nesterov=True, weight_decay=0.1, clipnorm=1.0, gradient_accumulation_steps=2)
    plan = recipe.plan(mirrored(2), own)
    assert (plan.accumulation, plan.factor) == (2, 4)
    made = plan.make_optimizer(SGD, clipnorm=2.0)
    assert (made.momentum, made.nesterov, made.weight_decay, made.clipnorm) == (0.9, True, 0.1, 2.0)
    assert made.gradient_accumulation_steps == 2
    adam = keras.optimizers.Adam(beta_1=0.8, epsilon=1e-3)
    one = phalanx.Recipe(batch_per_replica=32, learning_rate=1e-3).plan(phalanx.OneDeviceStrategy(), adam)
    made = one.make_optimizer(keras.optimizers.Adam)
    assert (made.beta_1, made.epsilon, made.beta_2) == (0.8, 1e-3, 0.999)
    with pytest.raises(SettingError, match="accumulation=4.*gradient_accumulation_steps=2"):
        recipe.plan(mirrored(2), own, accumulation=4)


def test_one_replica_at_the_base_batch_changes_nothing():
    plan = phalanx.Recipe(batch_per_replica=64, learning_rate=1e-3, warmup_steps=9).plan(
        phalanx.OneDeviceStrategy(), optimizer="adam"
    )
    assert (plan.factor, plan.scaled_rate, plan.optimizer_updates) == (1, 1e-3, {})
    assert [float(plan.learning_rate(step)) for step in (0, 9)] == pytest.approx([1e-3, 1e-3])


def test_without_warmup_callbacks_may_change_the_rate():
    plan = phalanx.Recipe(batch_per_replica=16, learning_rate=0.1, base_batch=32).plan(mirrored(4), "sgd")
    model = model_with(mirrored(4), plan.make_optimizer(SGD))
    reduce = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1e9)
    model.fit(X, Y, batch_size=64, epochs=3, verbose=0, callbacks=[reduce])
    assert float(model.optimizer.learning_rate) < 0.2


def test_the_plan_prints_each_number_with_its_formula_reference_and_warning():
    recipe = phalanx.Recipe(batch_per_replica=64, learning_rate=1e-3, base_batch=64, warmup_steps=500)
    with pytest.warns(PhalanxWarning, match="500 of 4,700 updates"):
        plan = recipe.plan(mirrored(4), "adam", dataset_size=60_000, epochs=20, noise_scale=900.0)
    lines = str(plan).splitlines()
    for line in (
        "global batch 256 64 x 4",
        "batch factor 4 256 / 64 (base_batch)",
        "rule sqrt auto: Adam family Malladi et al. 2022",
        "learning rate 0.002 0.001 x sqrt(4) Malladi et al. 2022",
        "beta_1 0.6 1 - 4 x (1 - 0.9) Malladi et al. 2022",
        "warmup 500 updates from 0.001 to 0.002, a straight line Goyal et al. 2017",
        "steps per epoch 235 ceil(60000 / 256)",
        "updates in all 4700 235 x 20 epochs",
    ):
        assert line in [" ".join(each.split()) for each in lines]
    assert any("39% fewer steps" in each for each in lines)
    assert any(each.startswith("! Warmup takes 500 of 4,700") for each in lines)


def test_batch_norm_rows_warn_under_the_replica_view_and_not_under_the_global_view():
    recipe = phalanx.Recipe(batch_per_replica=8, learning_rate=0.1)
    with pytest.warns(PhalanxWarning, match="from 8 rows"):
        recipe.plan(mirrored(4, view="replica"), "sgd")
    assert recipe.plan(mirrored(4), "sgd").warnings == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_per_replica": 0}, "batch_per_replica=0"),
        ({"batch_per_replica": -4}, "batch_per_replica=-4"),
        ({"batch_per_replica": 1.5}, "batch_per_replica=1.5"),
        ({"batch_per_replica": True}, "batch_per_replica=True"),
        ({"base_batch": 0}, "base_batch=0"),
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"learning_rate": -0.1}, "learning_rate=-0.1"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"learning_rate": float("inf")}, "learning_rate=inf"),
        ({"learning_rate": "0.1"}, "learning_rate='0.1'"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"rule": "cubic"}, "rule='cubic'"),
        ({"moments": "no"}, "moments='no'"),
        ({"learning_rate": schedules.CosineDecay}, "learning_rate=<class"),
    ],
)
def test_a_recipe_refuses_bad_numbers_with_their_value(options, said):
    with pytest.raises(SettingError, match=said) as caught:
        phalanx.Recipe(**({"batch_per_replica": 64, "learning_rate": 0.1} | options))
    assert "next:" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "ftrl"}, "'ftrl'"),
        (
            {"optimizer": SGD(schedules.CosineDecay(0.1, 10))},
            "CosineDecay in the optimizer.*0.1 in the recipe",
        ),
        ({"optimizer": SGD(0.3)}, "0.3 in the optimizer.*0.1 in the recipe"),
        ({"dataset_size": 0}, "dataset_size=0"),
        ({"epochs": -1}, "epochs=-1"),
        ({"accumulation": 0}, "accumulation=0"),
        ({"noise_scale": 0.0}, "noise_scale=0.0"),
        ({"noise_scale": float("inf")}, "noise_scale=inf"),
        ({"noise_scale": "9"}, "noise_scale='9'"),
        ({"smallest_busy_batch": -1}, "smallest_busy_batch=-1"),
        ({"optimizer": "nope"}, "optimizer='nope'"),
        ({"optimizer": None}, "optimizer=None"),
    ],
)
def test_a_plan_refuses_bad_numbers_and_two_rates(options, said):
    recipe = phalanx.Recipe(batch_per_replica=64, learning_rate=0.1)
    with pytest.raises(SettingError, match=said):
        recipe.plan(phalanx.OneDeviceStrategy(), **({"optimizer": "sgd"} | options))


def test_a_plan_is_for_a_strategy():
    with pytest.raises(SettingError, match="strategy='mirrored'"):
        phalanx.Recipe(batch_per_replica=64, learning_rate=0.1).plan("mirrored", "sgd")


def test_an_optimizer_may_carry_the_recipes_own_rate_or_its_default():
    recipe = phalanx.Recipe(batch_per_replica=64, learning_rate=0.1)
    assert (
        recipe.plan(mirrored(2), SGD()).scaled_rate == recipe.plan(mirrored(2), SGD(0.1)).scaled_rate == 0.2
    )


@pytest.mark.parametrize(
    ("optimizer", "options", "said"),
    [
        (SGD, {}, "SGD, but the plan is for adam"),
        ("adam", {}, "takes an optimizer's class"),
        (keras.optimizers.Adam, {"learning_rate": 0.1}, "learning_rate=0.1"),
        (keras.optimizers.Adam, {"beta_2": 0.99}, "beta_2=0.99"),
        (keras.optimizers.Adam, {"gradient_accumulation_steps": 4}, "gradient_accumulation_steps=4"),
    ],
)
def test_make_optimizer_refuses_what_the_plan_derives(optimizer, options, said):
    plan = phalanx.Recipe(batch_per_replica=64, learning_rate=1e-3).plan(mirrored(2), "adam")
    with pytest.raises(SettingError, match=said):
        plan.make_optimizer(optimizer, **options)
