"""How gradients travel between workers: decided from the model, with the reason."""

import keras
import numpy as np
import pytest

from phalanx.engine import keras as engine
from phalanx.flat import decide


def model(*layers, loss="mse", **compile):
    made = keras.Sequential([keras.Input((4, 8)), *(layers or [L.Dense(1)])])
    made.compile("sgd", loss, **compile)
    return made


L = keras.layers


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = L.Dense(1)

    def call(self, x):
        return self.inner(x) - keras.ops.mean(x)


class OwnLayer(L.Layer):
    def call(self, x):
        return x


def functional(mixes):
    x = keras.Input((8,))
    made = keras.Model(x, x - keras.ops.mean(x, axis=0) if mixes else L.Dense(1)(x))
    made.compile("sgd", "mse")
    return made


def broadcasting():
    x = keras.Input((8,))
    made = keras.Model(x, L.Dense(1)(x - L.Reshape((1, 8))(x)))  # every row minus every row
    made.compile("sgd", "mse")
    return made


def own():
    made = Own()
    made.compile("sgd", "mse")
    return made


def mean_over_rows(y, p):
    return keras.ops.mean(y - p)


ONE_BY_ONE = {
    "draws random numbers": lambda: model(L.Dropout(0.1, noise_shape=(1, 4, 8))),
    "Subtract": lambda: broadcasting(),
    "BatchNormalization": lambda: model(L.BatchNormalization()),
    "OwnLayer": lambda: model(OwnLayer()),
    "code of its own": own,
    "Mean": lambda: functional(mixes=True),
    "Lambda": lambda: model(L.Lambda(lambda x: x)),
    "adds a loss": lambda: model(L.Dense(2, activity_regularizer="l2")),
    "mean_over_rows": lambda: model(loss=mean_over_rows),
    "the loss Dice": lambda: model(loss=keras.losses.Dice()),
    "reduction 'sum'": lambda: model(loss=keras.losses.MeanSquaredError(reduction="sum")),
    "masks": lambda: model(L.Dense(3), loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0)),
    "keeps a state": lambda: stateful(),
    "half computes in float16": lambda: model(L.Dense(3, dtype="mixed_float16", name="half")),
    "half computes in bfloat16": lambda: model(L.Dense(3, dtype="mixed_bfloat16", name="half")),
    "recurrent": lambda: model(L.LSTM(3, recurrent_dropout=0.5, name="recurrent")),
}


def ready(made):
    """A model with its losses built, as before its first step."""
    x = np.zeros((2, 8) if isinstance(made, Own) or len(made.inputs[0].shape) == 2 else (2, 4, 8), "float32")
    y = np.asarray(made(x))
    sparse = "sparse" in str(getattr(made.loss, "name", made.loss))
    engine.build(made, (x, y[..., 0].astype("int32") if sparse else y))
    return made


def stateful():
    made = keras.Sequential([keras.Input((4, 8), batch_size=2), L.LSTM(3, stateful=True)])
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize("why", ONE_BY_ONE)
def test_what_is_not_row_by_row_travels_one_by_one(why):
    travel = decide(engine.crossing(ready(ONE_BY_ONE[why]())))
    assert not travel.flat
    assert why in travel.reason


def test_a_network_of_keras_own_row_by_row_layers_travels_flat():
    inner = keras.Sequential([L.Dense(4), L.LayerNormalization()])
    made = model(
        L.Dense(8, kernel_regularizer="l2"),
        inner,
        L.Dropout(0.3),
        L.Flatten(),
        L.Dense(3, activation="softmax"),
        loss="sparse_categorical_crossentropy",
    )
    travel = decide(engine.crossing(ready(made)))
    assert travel.flat, travel.reason
    assert decide(engine.crossing(ready(functional(mixes=False)))).flat
    x = keras.Input((4, 8))
    made = keras.Model(x, (x + np.ones((4, 8))) * x - L.MultiHeadAttention(2, 4, dropout=0.1)(x, x) / 2)
    made.compile("sgd", "mse")
    assert decide(engine.crossing(ready(made))).flat
