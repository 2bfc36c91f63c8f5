"""The measured noise scale is the one that closed forms give, on any number of replicas, and changes no training."""

import keras
import numpy as np
import pytest

import phalanx
from phalanx.callbacks import GradientNoiseScale
from phalanx.errors import ScopeError, SettingError, UnsupportedError
from phalanx.split import rows_per_replica
from phalanx.training.noise import rows_of

FEATURES, NOISE = 6, 2.0
SPREAD = np.array([0.5, 0.75, 1.0, 1.0, 1.25, 1.5])  # standard deviation of each feature
OFF = np.array([0.5, -0.3, 0.2, 0.4, -0.1, 0.3])  # how far the weights are from the true ones


def strategy(replicas, **options):
    if replicas == 1:
        return phalanx.OneDeviceStrategy("cpu:0")
    return phalanx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], **options)


def regression(rows, seed=0):
    """y = noise on x with true weights 0; the model's weights are `OFF`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)) * SPREAD
    return x.astype("float32"), (NOISE * rng.normal(size=(rows, 1))).astype("float32")


def closed_form():
    """For squared error the gradient of a row is 2 x (x d - e): its mean and covariance, x normal.

    |G|^2 = 4 |S d|^2 and E|g|^2 = 4 (E[|x|^2 (x d)^2] + noise^2 tr S), where the fourth moment of a normal
    x is tr S (d S d) + 2 |S d|^2 (Isserlis).
    """
    s = SPREAD**2
    gradient = 4 * np.sum((s * OFF) ** 2)
    square = 4 * (s.sum() * np.sum(s * OFF**2) + 2 * np.sum((s * OFF) ** 2) + NOISE**2 * s.sum())
    return (square - gradient) / gradient


def test_the_closed_form_is_that_of_the_rows():
    x, y = regression(400_000)
    gradients = 2 * x * (x @ OFF[:, None] - y)
    mean = gradients.mean(0)
    direct = gradients.var(0).sum() / (mean**2).sum()
    assert closed_form() == pytest.approx(direct, rel=0.03)


def frozen(on, loss="mse"):
    with on.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.0), loss)
    model.set_weights([OFF[:, None].astype("float32")])
    return model


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_it_is_within_15_percent_of_the_closed_form(replicas):
    x, y = regression(64 * 1500)
    look = GradientNoiseScale(every=1, decay=0.999)
    model = frozen(strategy(replicas))
    history = model.fit(x, y, batch_size=64, shuffle=False, verbose=0, callbacks=[look])
    assert look.noise_scale == pytest.approx(closed_form(), rel=0.15)
    assert history.history["noise_scale"] == [look.noise_scale]


def test_a_loss_that_sums_its_rows_has_the_same_noise_scale():
    x, y = regression(64 * 100)
    scales = []
    for reduction in ("sum_over_batch_size", "sum"):
        look = GradientNoiseScale(every=1, decay=0.9)
        model = frozen(strategy(2), keras.losses.MeanSquaredError(reduction=reduction))
        model.fit(x, y, batch_size=64, shuffle=False, verbose=0, callbacks=[look])
        scales.append(look.noise_scale)
    assert scales[1] == pytest.approx(scales[0], rel=1e-3)


def test_training_is_the_same_to_the_bit_and_short_batches_are_looked_at():
    def run(callbacks):
        keras.utils.set_random_seed(0)
        with strategy(4).scope():
            model = keras.Sequential(
                [
                    keras.Input((FEATURES,)),
                    keras.layers.Dense(8),
                    keras.layers.Dropout(0.5),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("adam", "mse")
        x, y = regression(70)
        history = model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=callbacks).history
        return history["loss"], model.get_weights()

    look = GradientNoiseScale(every=1)
    with_it, without = run([look]), run([])
    assert with_it[0] == without[0]
    for a, b in zip(with_it[1], without[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert look.average.trace > 0


class Batch:
    def __init__(self, sizes):
        self.sizes = sizes


@pytest.mark.parametrize(
    ("rows", "replicas", "wanted"),
    [
        (64, 4, (8, 32)),
        (64, 1, (32, 64)),
        (37, 4, (3, 12)),  # shares of 10, 10, 10 and 7
        (4, 4, (1, 4)),
        (5, 4, (0, 0)),  # one replica has none
        (1, 1, (0, 0)),
    ],
)
def test_equal_parts_fit_into_the_shortest_share(rows, replicas, wanted):
    assert rows_of(Batch(rows_per_replica(rows, replicas)), replicas) == wanted


def test_a_model_without_a_strategy_is_told_what_to_paste():
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ScopeError, match="OneDeviceStrategy"):
        model.fit(*regression(8), verbose=0, callbacks=[GradientNoiseScale()])


def test_an_own_training_step_is_refused_before_any_step():
    class Own(keras.Sequential):
        def train_step(self, state, data):
            return super().train_step(state, data)

    with strategy(2).scope():
        model = Own([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(UnsupportedError, match="Own overrides train_step"):
        model.fit(*regression(8), verbose=0, callbacks=[GradientNoiseScale()])
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"every": 2.5}, {"every": True}, {"decay": 1.0}, {"decay": -0.1}]
)
def test_bad_numbers_are_named(options):
    ((name, value),) = options.items()
    with pytest.raises(SettingError, match=f"{name}={value}"):
        GradientNoiseScale(**options)
