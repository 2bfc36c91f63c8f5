"""Data goes on where it was: what is read again says so, and what may come in another order is named before."""

import grain
import numpy as np
import pytest
import tensorflow as tf
import torch

from phalanx.data import doubts
from phalanx.errors import PhalanxWarning
from phalanx.training.home import home_of
from tests.rooms.resuming import TWICE, StopAt, X, Y, check, fresh, run, usual

STOPS = [StopAt(0, 3), StopAt(1, "end"), StopAt(2, 1)]


def sliced(seed=1):
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(42, seed=seed).batch(8)


def test_tf_data_in_a_new_order_each_epoch_is_read_again(tmp_path, caplog):
    check(lambda: {"x": sliced()}, tmp_path, STOPS)
    assert [
        record.getMessage().split(":")[0] for record in caplog.records if "replaying" in record.message
    ] == [
        "replaying 3 batches",
        "replaying 12 batches",
        "replaying 13 batches",
    ]


def test_tf_data_that_repeats(tmp_path):
    check(lambda: {"x": sliced().repeat()}, tmp_path, STOPS, steps_per_epoch=4)


def test_tf_data_whose_length_only_reading_tells(tmp_path):
    check(
        lambda: {"x": sliced().filter(lambda x, y: tf.shape(x)[0] > 7)},
        tmp_path,
        [StopAt(0, 4), StopAt(1, 2)],
    )


def test_a_loader_with_a_generator_of_its_own(tmp_path):
    def loader():
        rows = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
        mixed = torch.Generator().manual_seed(3)
        return {"x": torch.utils.data.DataLoader(rows, 8, shuffle=True, generator=mixed)}

    check(loader, tmp_path, STOPS)


def test_grain_datasets(tmp_path):
    rows = grain.MapDataset.source([(X[i], Y[i]) for i in range(42)]).shuffle(seed=2).batch(8)
    check(lambda: {"x": rows}, tmp_path, STOPS)
    check(lambda: {"x": rows.to_iter_dataset()}, tmp_path, TWICE)


def test_a_pipeline_of_each_workers_own(tmp_path):
    def pipeline():
        strategy = home_of(fresh(usual)).strategy
        return {"x": strategy.distribute_datasets_from_function(lambda context: sliced())}

    check(pipeline, tmp_path, [StopAt(0, 1), StopAt(1, 0)])


def batches():
    """A generator without end, and always the same."""
    order = np.random.default_rng(5)
    while True:
        rows = order.integers(0, 42, 8)
        yield X[rows], Y[rows]


def test_a_generator_without_end_warns_once_and_goes_on_exactly(tmp_path):
    with pytest.warns(PhalanxWarning, match="must yield the same batches") as caught:
        check(lambda: {"x": batches()}, tmp_path, TWICE, steps_per_epoch=4)
    assert sum("resumes to the bit" in str(each.message) for each in caught) == 3  # one of each process


@pytest.mark.filterwarnings("ignore:A run resumes to the bit")
def test_a_generator_that_gives_something_else_is_named(tmp_path):
    def random():
        rows = np.random.default_rng().integers(0, 42, 8)
        while True:
            yield X[rows], Y[rows]

    with pytest.warns(PhalanxWarning, match="first batch has other values"):
        run(lambda: {"x": random()}, tmp_path, [StopAt(0, 1)], steps_per_epoch=3)


@pytest.mark.filterwarnings("ignore:A run resumes to the bit")
def test_a_generator_for_validation(tmp_path):
    check(
        lambda: {"x": X, "y": Y, "batch_size": 8, "validation_data": batches()},
        tmp_path,
        [StopAt(0, "test"), StopAt(1, "end"), StopAt(2, 0)],
        validation_steps=2,
    )


def test_what_speaks_against_the_same_order():
    tf.random.set_seed(None)
    assert doubts.doubt(sliced()) is None
    assert "no seed" in doubts.doubt(sliced(seed=None).repeat().prefetch(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.tensor(X)), 8, shuffle=True)
    assert "torch's global state" in doubts.doubt(loader)
    assert doubts.doubt(X) is None
