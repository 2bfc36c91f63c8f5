"""Callbacks go on from where they were: what they counted, what was best, what they have seen."""

import signal

import keras
import numpy as np
import pytest

import phalanx
from phalanx.errors import CheckpointError, PhalanxWarning
from tests.rooms.resuming import TWICE, StopAt, X, Y, arrays, check, everything, fresh, run, usual

LATE = [StopAt(1, 3), StopAt(2, "end"), StopAt(3, 0)]


def validated(callback, folder, stops=LATE, **options):
    options = {"epochs": 6, "validation_data": (X[:19], Y[:19] + 3), "save_freq": 2} | options
    return check(arrays, folder, stops, callbacks=lambda: [callback()], **options)


def test_early_stopping_stops_at_the_same_epoch_with_the_same_best_weights(tmp_path):
    def early():
        return keras.callbacks.EarlyStopping("mae", mode="max", patience=2, restore_best_weights=True)

    _, epochs, _ = validated(early, tmp_path, [StopAt(1, 3), StopAt(2, "test")])
    assert len(epochs) < 6


def test_a_plateau_lowers_the_rate_at_the_same_epoch(tmp_path):
    def plateau():
        return keras.callbacks.ReduceLROnPlateau("loss", mode="max", patience=1, factor=0.5, cooldown=1)

    _, _, history = validated(plateau, tmp_path)
    assert len(set(history["learning_rate"])) > 1


def test_a_schedule_by_epochs_is_applied_once_an_epoch(tmp_path):
    def schedule():
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 * rate)

    _, _, history = validated(schedule, tmp_path)
    assert history["learning_rate"] == pytest.approx([0.02 / 2**epoch for epoch in range(1, 7)])


def test_the_best_model_is_not_overwritten_by_a_worse_one(tmp_path):
    """Reports, row 37."""

    def best():
        return keras.callbacks.ModelCheckpoint(
            tmp_path / "{epoch}.keras", "loss", mode="max", save_best_only=True
        )

    _, _, history = validated(best, tmp_path)
    saved = sorted(int(path.stem) for path in tmp_path.glob("*.keras"))
    losses = history["loss"]
    assert saved == [n + 1 for n in range(6) if losses[n] == max(losses[: n + 1])] != list(range(1, 7))


def test_the_noise_scale(tmp_path):
    def steep():
        return {"x": X, "y": Y + 3, "batch_size": 8}

    def noise():
        return [phalanx.callbacks.GradientNoiseScale(every=2)]

    _, _, history = check(steep, tmp_path, TWICE, callbacks=noise)
    assert "noise_scale" in history


def averaging():
    return usual(keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.5))


def test_weights_that_are_swapped_for_averages_between_epochs(tmp_path):
    def swap():
        return keras.callbacks.SwapEMAWeights(swap_on_epoch=True)

    validated(swap, tmp_path, make=averaging)


def test_weights_that_are_swapped_for_a_validation_in_which_the_run_is_told_to_go(tmp_path):
    """The backup has the weights of training, not those of the validation."""
    wanted = run(arrays, tmp_path, (), make=averaging, callbacks=swap_in_validation, **VALIDATED)
    told = iter([None] * 9 + ["go"] + [None] * 100)  # 6 steps, then in the validation
    backup = phalanx.callbacks.BackupAndRestore(tmp_path / "left", on_preemption=lambda: next(told))
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="75"):
            extra = [*swap_in_validation(), backup]
            fresh(averaging).fit(**arrays(), epochs=3, verbose=0, callbacks=extra, **VALIDATED)
    finally:
        signal.signal(signal.SIGTERM, before)  # a process that is told to go ignores it until it has gone
    assert phalanx.checkpoint.inspect(tmp_path / "left").manifest.progress["phase"] == "trained"
    model = fresh(averaging)
    extra = [*swap_in_validation(), phalanx.callbacks.BackupAndRestore(tmp_path / "left")]
    history = model.fit(**arrays(), epochs=3, verbose=0, callbacks=extra, **VALIDATED)
    assert history.history == wanted[2]
    for a, b in zip(everything(model), wanted[0], strict=True):
        np.testing.assert_array_equal(a, b)


VALIDATED = {"validation_data": (X[:40], Y[:40] + 3), "validation_batch_size": 8}


def swap_in_validation():
    return [keras.callbacks.SwapEMAWeights()]


class Mine(keras.callbacks.Callback):
    """A callback of the user's own, with a state and with random numbers."""

    def __init__(self):
        super().__init__()
        self.seen, self.largest = {}, (np.zeros(2), np.float32(0))

    def on_epoch_begin(self, epoch, logs=None):
        self.seen[epoch] = float(np.random.random())

    def on_train_batch_end(self, batch, logs=None):
        self.largest = self.largest[0] + batch, np.float32(np.random.random())

    def on_epoch_end(self, epoch, logs=None):
        logs |= {
            "seen": self.seen[epoch],
            "sum": float(self.largest[0].sum()),
            "last": float(self.largest[1]),
        }

    def get_state(self):
        return {"seen": self.seen, "largest": self.largest}

    def set_state(self, state):
        self.seen, self.largest = state["seen"], state["largest"]


def test_a_callback_with_a_state_of_its_own(tmp_path):
    validated(Mine, tmp_path)


def test_a_stop_in_the_middle_of_an_epoch_is_not_forgotten(tmp_path):
    class Enough(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                self.model.stop_training = True

    _, epochs, _ = validated(Enough, tmp_path, [StopAt(0, "test"), StopAt(0, "end")], save_freq=1)
    assert epochs == [0]


def test_a_state_that_is_no_data_is_refused_by_name(tmp_path):
    class Odd(keras.callbacks.Callback):
        def get_state(self):
            return {"file": object()}

        def set_state(self, state):
            pass

    with pytest.raises(CheckpointError, match="Odd/file: builtins.object"):
        run(arrays, tmp_path, [StopAt(0, 0)], callbacks=lambda: [Odd()])


def test_a_callback_that_is_missing_is_named(tmp_path):
    given = iter([[Mine()], []])
    with pytest.raises(PhalanxWarning, match="states of Mine"):
        run(arrays, tmp_path, [StopAt(0, 3)], callbacks=lambda: next(given))


def test_a_csv_log_goes_on_at_its_row(tmp_path):
    logs = []

    def log():
        for each in logs:
            each.csv_file.close()  # as the end of a process does
        logs.append(keras.callbacks.CSVLogger(tmp_path / ("stopped" if logs else "undisturbed")))
        return logs[-1]

    validated(log, tmp_path, epochs=5)
    text = (tmp_path / "stopped").read_text()
    assert text == (tmp_path / "undisturbed").read_text() and len(text.splitlines()) == 6
