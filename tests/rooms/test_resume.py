"""A fit that is stopped and started again equals the one that nobody disturbed, to the bit, History included."""

import keras
import numpy as np
import pytest

import phalanx
from phalanx.checkpoint import folder
from phalanx.callbacks import BackupAndRestore

ROWS = 42  # batches of 8: five whole ones and two rows
X = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
Y = np.sin(X[:, :1]) + 0.1 * X[:, 1:2]


class Stop(Exception):
    """The user's own error, in the middle of training."""


class StopAt(keras.callbacks.Callback):
    """Stops at a batch (after it is done) of an epoch, or at the end of an epoch or the start of validation."""

    def __init__(self, epoch, batch=None, hook="batch"):
        super().__init__()
        self.at, self.hook, self.now = (epoch, batch), hook, None

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.hook == "batch" and (self.now, batch) == self.at:
            raise Stop

    def on_test_begin(self, logs=None):
        if self.hook == "test" and self.now == self.at[0]:
            raise Stop

    def on_epoch_end(self, epoch, logs=None):
        if self.hook == "end" and epoch == self.at[0]:
            raise Stop


def build(replicas=2, optimizer=None, dropout=0.2, **compiled):
    keras.utils.set_random_seed(0)
    with phalanx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)]).scope():
        layers = [keras.layers.Dense(4, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        if dropout:
            layers.insert(1, keras.layers.Dropout(dropout))
        model = keras.Sequential([keras.Input((6,)), *layers])
        compiled = {"loss": "mse", "metrics": ["mae"]} | compiled
        model.compile(optimizer() if optimizer else keras.optimizers.Adam(0.02), **compiled)
    return model


def everything(model):
    return [
        np.array(each) for each in [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    ]


def run(
    data, tmp_path, stops=(), make=build, callbacks=lambda: [], save_freq=1, epochs=3, validate=False, **fit
):
    """Fit, stopped at each of `stops` and started again as a new process would; the model and its History."""
    for stop in [*stops, None]:
        model = make()
        extra = [BackupAndRestore(tmp_path / "backups", save_freq=save_freq)] if stops else []
        if stop is not None:
            extra.append(stop)
        given = data()
        if validate:
            fit["validation_data"] = (X[:19], Y[:19])
        try:
            history = model.fit(**given, epochs=epochs, verbose=0, callbacks=[*callbacks(), *extra], **fit)
        except Stop:
            continue
        assert stop is None, "it never came to the stop"
    return model, history


def assert_same(found, wanted):
    (model, history), (other, told) = found, wanted
    assert history.epoch == told.epoch
    assert history.history == told.history
    for a, b in zip(everything(model), everything(other), strict=True):
        np.testing.assert_array_equal(a, b)


def check(data, tmp_path, stops, **options):
    assert_same(run(data, tmp_path, stops, **options), run(data, tmp_path, (), **options))
    assert not (tmp_path / "backups").exists()


def arrays():
    return {"x": X, "y": Y, "batch_size": 8}


@pytest.mark.parametrize(
    "stops",
    [[StopAt(1, 2)], [StopAt(0, 0)], [StopAt(1, 5)], [StopAt(0, 3), StopAt(1, 0), StopAt(2, 4)]],
    ids=str,
)
def test_shuffled_arrays_in_the_middle_of_an_epoch(tmp_path, stops):
    """Dropout, batch-norm, shuffling, and metrics that have seen half an epoch."""
    check(arrays, tmp_path, stops)
