"""A fit that is stopped and started again equals the one that nobody disturbed, to the bit, History included."""

import keras
import numpy as np

from tests.rooms.resuming import TWICE, StopAt, X, Y, arrays, check, usual


def test_shuffled_arrays_in_the_middle_of_an_epoch(tmp_path):
    """Dropout, batch-norm, shuffling, a short last batch, and metrics that have seen half an epoch."""
    check(arrays, tmp_path, [StopAt(0, 0), StopAt(1, 2), StopAt(1, 5), StopAt(2, 4)])


def test_work_since_the_last_backup_is_done_again(tmp_path):
    check(arrays, tmp_path, [StopAt(0, 4), StopAt(2, 1)], save_freq=4)


def test_after_an_epoch_and_before_the_first_backup(tmp_path):
    check(arrays, tmp_path, [StopAt(0, 1), StopAt(1, "end"), StopAt(2, 0)], save_freq="epoch")


def test_stopped_between_training_and_validation(tmp_path):
    stops = [StopAt(0, "test"), StopAt(1, "end")]
    check(arrays, tmp_path, stops, validation_data=(X[:19], Y[:19]))


def test_one_pass_over_several_epochs(tmp_path):
    check(arrays, tmp_path, [StopAt(0, 1), StopAt(1, "end"), StopAt(2, 0)], steps_per_epoch=2)


class Augmented(keras.utils.PyDataset):
    """Draws from NumPy's global state for each batch, and mixes its order at the end of each epoch."""

    def __init__(self, draws=True, **options):
        super().__init__(**options)
        self.order, self.draws = np.arange(len(X)), draws

    def __len__(self):
        return 6

    def __getitem__(self, number):
        rows = self.order[8 * number : 8 * number + 8]
        return X[rows] + (np.random.normal(size=(len(rows), 6)) if self.draws else 0), Y[rows]

    def on_epoch_end(self):
        if self.draws:
            np.random.shuffle(self.order)


def test_a_py_dataset_that_draws_random_numbers(tmp_path):
    stops = [StopAt(0, 1), StopAt(1, "end"), StopAt(2, 3)]
    check(lambda: {"x": Augmented()}, tmp_path, stops, shuffle=True)
    check(lambda: {"x": Augmented()}, tmp_path, stops[:2], steps_per_epoch=2)


def test_a_py_dataset_read_by_threads(tmp_path):
    check(lambda: {"x": Augmented(draws=False, workers=2)}, tmp_path, TWICE, shuffle=True)


def test_a_py_dataset_without_end(tmp_path):
    class Endless(Augmented):
        @property
        def num_batches(self):
            return None

        def __getitem__(self, number):
            return super().__getitem__(number % 6)

    check(lambda: {"x": Endless()}, tmp_path, TWICE, steps_per_epoch=5)


def in_threes():
    return usual(steps_per_execution=3)


def test_several_steps_in_one_execution(tmp_path):
    check(arrays, tmp_path, [StopAt(0, 2), StopAt(1, 5), StopAt(2, 2)], make=in_threes)


def accumulating():
    return usual(keras.optimizers.Adam(0.02, gradient_accumulation_steps=4))


def test_gradients_half_way_through_an_accumulation(tmp_path):
    check(arrays, tmp_path, [StopAt(0, 2), StopAt(1, 0), StopAt(1, "end")], make=accumulating)


class Own(keras.Model):
    """A training step whose logs are no metrics of the model."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return {"twice": 2 * logs["loss"]}, state


def own():
    model = Own()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def test_the_last_logs_of_a_step_of_ones_own(tmp_path):
    """Stopped after the last step: nothing is left of the epoch but its logs."""
    check(arrays, tmp_path, [StopAt(0, 5), StopAt(1, "test")], make=own, validation_data=(X[:19], Y[:19]))


def scaled():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse")
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def test_a_loss_scale_and_the_steps_that_it_skipped(tmp_path):
    wild = X.copy()
    wild[9] = 1e5

    def data():
        return {"x": wild, "y": Y, "batch_size": 8, "shuffle": False}

    _, _, history = check(data, tmp_path, [StopAt(0, 1), StopAt(1, 3)], make=scaled)
    assert history["skipped_steps"][0] >= 1
