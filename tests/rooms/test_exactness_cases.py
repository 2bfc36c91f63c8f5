"""Every kind of model trains on replicas to the one-device result; the table and the bound are in `cases.py`."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

from tests.rooms.cases import CASES, assert_equal, built, everything, mlp, oracle, regression, replicas, train

# MeanIoU asks JAX for int64, on one device as on many.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")

# Cases stay together, so that most find their oracle ready.
PAIRS = [
    (name, count) for name, case in CASES.items() for count in ((4, 1, 2, 8) if case.everywhere else (4,))
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, count", PAIRS)
def test_replicas_equal_one_device(name, count):
    wanted = oracle(name)
    losses = wanted["history 0, loss"]
    assert losses[0] != losses[-1], "a model that does not learn would prove nothing"
    assert_equal(train(CASES[name], replicas(count)), wanted, CASES[name].tolerance)


@pytest.mark.parametrize("name", ["sort", "median", "fft"])
def test_operations_along_the_rows_equal_one_device_on_remainders(name):
    """XLA's partitioner ends the process on these, where rows do not divide by the replicas."""
    operations = {
        "sort": lambda x: keras.ops.sort(x, axis=0),
        "median": lambda x: x - keras.ops.median(x, axis=0, keepdims=True),
        "fft": lambda x: keras.ops.transpose(
            keras.ops.fft((keras.ops.transpose(x), keras.ops.zeros_like(keras.ops.transpose(x))))[0]
        ),
    }

    class Along(layers.Layer):
        def call(self, x):
            return operations[name](x)

        def compute_output_shape(self, shape):
            return shape

    def build():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(4), Along(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    data = regression()

    def run(strategy):
        model = built(build, strategy)
        history = model.fit(data.x[:37], data.y[:37], batch_size=16, epochs=2, shuffle=False, verbose=0)
        outputs = model.predict(data.x[:13], verbose=0)
        return everything(model, "after") | {"loss": np.array(history.history["loss"]), "outputs": outputs}

    assert_equal(run(replicas(4)), run(None))


def test_each_replica_computes_its_own_rows_only():
    shardings = []

    class Spy(layers.Layer):
        def call(self, x):
            jax.debug.inspect_array_sharding(
                x, callback=lambda s: shardings.append((s.shard_shape(x.shape), x.shape))
            )
            return x

    def build():
        model = keras.Sequential([keras.Input((6,)), Spy(), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    data = regression()
    built(build, replicas(4)).fit(data.x[:32], data.y[:32], batch_size=16, verbose=0)
    assert shardings == [((4, 6), (16, 6))]


def test_single_batches_equal_one_device():
    """`train_on_batch`, `test_on_batch` and `predict_on_batch`, on 5 rows for 4 replicas."""
    data = regression()

    def run(strategy):
        model = built(mlp, strategy)
        logs = [
            model.train_on_batch(data.x[rows], data.y[rows])
            for rows in (slice(0, 16), slice(16, 21), slice(21, 22))
        ]
        logs.append(model.test_on_batch(data.x[:5], data.y[:5]))
        outputs = model.predict_on_batch(data.x[:5])
        return everything(model, "after") | {"logs": np.array(logs), "outputs": outputs}

    assert_equal(run(replicas(4)), run(None))


def test_a_bias_before_batch_norm_has_a_gradient_of_noise_which_sgd_leaves_harmless():
    """The one limit: this bias has gradient zero in exact arithmetic, so its computed gradient is rounding noise.

    Replicas add in another order and get other noise. SGD multiplies it by the learning rate, and nobody ever
    sees it. Adam divides it by its own size and moves the bias by a full learning rate in a random direction,
    on replicas and, with any other compiler, on one device: that is why no case in the table has such a bias.
    """

    def build():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(16, name="before"),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    data = regression()

    def run(strategy):
        model = built(build, strategy)
        kernel = np.asarray(model.get_layer("before").kernel)
        model.fit(data.x, data.y, batch_size=16, epochs=3, shuffle=False, verbose=0)
        layer = model.get_layer("before")
        moved = [np.abs(np.asarray(layer.kernel) - kernel).max(), np.abs(np.asarray(layer.bias)).max()]
        return everything(model, "after") | {"predictions": model.predict(data.x, verbose=0)}, moved

    (one, (kernel_moved, bias_moved)), (four, _) = run(None), run(replicas(4))
    assert kernel_moved > 1e-2 and bias_moved < 1e-6
    assert_equal(four, one)
