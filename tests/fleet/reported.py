"""Models and data of users' reports, for workers."""

import keras
import numpy as np

SCORED = (
    np.array([[0.1], [0.4], [0.35], [0.8], [0.7], [0.2], [0.5], [0.9]], "float32"),
    np.array([[0], [1], [1], [0], [1], [0], [0], [1]], "float32"),
)


class Seen(keras.layers.Layer):
    """Counts the rows that pass."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.seen.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "float32"))
        return x


class Batches(keras.utils.PyDataset):
    """Whole batches by number."""

    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]


def endless(x, y, size):
    """Batches that never end."""
    data = Batches(x, y, size)
    while True:
        yield from (data[index] for index in range(len(data)))


def errors_of(rows):
    """Rows of which a model that passes its input on is off by 0, 1, 2, ..."""
    numbers = np.arange(rows, dtype="float32")[:, None]
    return np.zeros_like(numbers), numbers


def counting():
    """Passes its input on, and counts rows."""
    model = keras.Sequential(
        [keras.Input((1,)), Seen(), keras.layers.Dense(1, kernel_initializer="ones", name="same")]
    )
    model.compile(keras.optimizers.SGD(1e-6), "mae", metrics=["mae"])
    return model


def tutorial():
    """The network of the tutorial of several workers."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.001), loss, metrics=["accuracy"])
    return model


def scores():
    """Passes scores on to metrics that are no means over rows."""
    kinds = keras.metrics
    counts = [
        kinds.FalsePositives(0.5, name="fp"),
        kinds.TruePositives(0.5, name="tp"),
        kinds.TrueNegatives(0.5, name="tn"),
        kinds.FalseNegatives(0.5, name="fn"),
    ]
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(
        loss="mse",
        metrics=[kinds.AUC(name="auc"), kinds.F1Score(threshold=0.5), kinds.Precision(0.5), *counts],
    )
    return model


def half():
    """Float16 inside, float32 at its end."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    inner = layers.Dense(16, activation="relu", dtype="mixed_float16", name="dense_half")
    model = keras.Sequential([keras.Input((8,)), inner, layers.Dense(1, dtype="float32")])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-3)), "mse")
    return model
