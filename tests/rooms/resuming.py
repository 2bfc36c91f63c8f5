"""A fit that is stopped and started again, beside one that nobody disturbed."""

import functools

import keras
import numpy as np

import phalanx
from phalanx.callbacks import BackupAndRestore
from phalanx.checkpoint import model as whole

X = np.random.default_rng(0).normal(size=(42, 6)).astype("float32")  # batches of 8: five, and two rows
Y = np.sin(X[:, :1]) + 0.1 * X[:, 1:2]


class Stop(Exception):
    """The user's own error, in the middle of training."""


class StopAt(keras.callbacks.Callback):
    """Stops after a batch of an epoch, at the start of its validation (`"test"`), or at its end (`"end"`)."""

    def __init__(self, epoch, at):
        super().__init__()
        self.epoch, self.at, self.now = epoch, at, None

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def _maybe(self, at):
        if (self.now, at) == (self.epoch, self.at):
            raise Stop

    def on_train_batch_end(self, batch, logs=None):
        self._maybe(batch)

    def on_test_begin(self, logs=None):
        self._maybe("test")

    def on_epoch_end(self, epoch, logs=None):
        self._maybe("end")


@functools.cache
def built(make, replicas):
    """A model, and the values that it starts with: compiled once for all the runs of this file."""
    keras.utils.set_random_seed(0)
    with phalanx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)]).scope():
        model = make()
    model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
    return model, whole.copies(model)


def fresh(make, replicas=2):
    """A model as a new process would build it."""
    model, values = built(make, replicas)
    whole.put(model, {key: np.array(value) for key, value in values.items()})
    keras.utils.set_random_seed(7)
    return model


def usual(optimizer=None, **compiled):
    layers = [
        keras.layers.Dense(4, "tanh"),
        keras.layers.Dropout(0.2),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(optimizer or keras.optimizers.Adam(0.02), **{"loss": "mse", "metrics": ["mae"]} | compiled)
    return model


def everything(model):
    every = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [np.array(each) for each in every]


def run(data, folder, stops=(), make=usual, callbacks=list, save_freq=1, epochs=3, **fit):
    """Fit, stopped at each of `stops` and started again as a new process would; the values and the History."""
    for stop in [*stops, None]:
        model = fresh(make)
        extra = [BackupAndRestore(folder / "backups", save_freq=save_freq)] if stops else []
        extra += [] if stop is None else [stop]
        try:
            history = model.fit(**data(), epochs=epochs, verbose=0, callbacks=[*callbacks(), *extra], **fit)
        except Stop:
            continue
        assert stop is None, "it never came to the stop"
    return everything(model), history.epoch, history.history


def check(data, folder, stops, **options):
    """Compare; the result of the undisturbed run."""
    wanted = run(data, folder, (), **options)
    found = run(data, folder, stops, **options)
    assert found[1:] == wanted[1:], f"{found[1:]} instead of {wanted[1:]}"
    for a, b in zip(found[0], wanted[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert not (folder / "backups").exists()
    return wanted


TWICE = [StopAt(0, 3), StopAt(1, 1)]


def arrays():
    return {"x": X, "y": Y, "batch_size": 8}
