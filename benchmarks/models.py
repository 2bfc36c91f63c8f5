"""The three networks of the benchmarks, in Keras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers
from tasks import TASKS, Task


@dataclass(frozen=True, kw_only=True)
class Case(Task):
    """One network to train, and its rows.

    Attributes:
        build: Makes the network; the seed is set before.
    """

    build: Callable[[], keras.Model]

    def compiled(self) -> keras.Model:
        """Return the network, from the same seed each time, compiled with Adam and accuracy."""
        keras.utils.set_random_seed(0)
        model = self.build()
        model.compile(
            optimizer=keras.optimizers.Adam(1e-3),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model


def classes() -> keras.Layer:
    """Return the output layer of all three, in float32 under every dtype policy."""
    return layers.Dense(10, activation="softmax", dtype="float32")


def mlp() -> keras.Model:
    """Return the 784-100-10 network of the course text."""
    return keras.Sequential([keras.Input((784,)), layers.Dense(100, activation="relu"), classes()])


def cnn() -> keras.Model:
    """Return two convolutions with batch-norm, dropout and one hidden layer, on 28 x 28 images."""
    stack: list[Any] = [keras.Input((28, 28, 1))]
    for filters in (16, 32):
        stack += [
            layers.Conv2D(filters, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
        ]
    stack += [layers.Flatten(), layers.Dropout(0.3), layers.Dense(64, activation="relu")]
    return keras.Sequential([*stack, classes()])


def transformer() -> keras.Model:
    """Return a two-block encoder of width 64 over 32 tokens, with dropout, that names one of ten classes."""
    tokens = keras.Input((32,), dtype="int32")
    place = layers.Embedding(32, 64)(keras.ops.reshape(keras.ops.arange(32), (1, 32)))
    flow = layers.Embedding(1000, 64)(tokens) + place
    for _ in range(2):
        seen = layers.LayerNormalization()(flow)
        flow = flow + layers.MultiHeadAttention(4, 16, dropout=0.1)(seen, seen)
        seen = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(flow))
        flow = flow + layers.Dropout(0.1)(layers.Dense(64)(seen))
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(flow))
    return keras.Model(tokens, classes()(pooled))


CASES = {
    build.__name__: Case(**vars(TASKS[build.__name__]), build=build) for build in (mlp, transformer, cnn)
}
