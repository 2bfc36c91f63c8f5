"""The feed: batches are read, checked and placed once each, one group ahead of their use, and no further."""

import warnings

import keras
import numpy as np
import pytest

from phalanx import ColumnError, DataError
from phalanx.data import columns
from phalanx.data.feed import Feed
from phalanx.data.source import open_source
from tests.rooms.cases import replicas
from tests.rooms.test_inputs_arrays import X, Y, model_on
from tests.rooms.test_inputs_streams import Batches, finite, reusing


class Counted:
    """A generator that says how many batches were read of it."""

    def __init__(self, batches):
        self.read, self.batches = 0, batches

    def stream(self):
        for batch in self.batches:
            self.read += 1
            yield batch


class Placements:
    """A placement that keeps a log, around the real one."""

    def __init__(self, count=4):
        self.real, self.log = replicas(count).placement, []

    def place(self, batch, rows, **how):
        self.log.append(rows)
        return self.real.place(batch, rows, **how)


def feed_of(data, placement=None, **settings):
    data = data if isinstance(data, tuple) else (data,)
    source = open_source(
        *data, name="the data", batch_size=None if len(data) == 1 else 8, steps=settings.get("steps")
    )
    return Feed(source, placement or replicas(4).placement, **settings)


def numbers(size, rows=4):
    """`size` batches of equal numbers: 0, 1, 2, ..."""
    return [(np.full((rows, 1), i, "float32"), np.full((rows, 1), i, "float32")) for i in range(size)]


def firsts(group):
    return [float(batch.arrays[0][0, 0]) for batch in group.batches]


def test_groups_hold_the_batches_of_an_execution_and_the_last_may_be_short():
    feed = feed_of((X[:80], Y[:80]), group=3)
    found = [(group.first, group.last, len(group.batches)) for group in feed.epoch()]
    assert found == [(0, 2, 3), (3, 5, 3), (6, 8, 3), (9, 9, 1)]


def test_a_batch_lies_split_by_rows_and_remembers_its_true_rows():
    *_, group = feed_of((X[:70], Y[:70])).epoch()
    (batch,) = group.batches
    x, y = batch.arrays
    assert (batch.rows, batch.padded, batch.cut) == (6, 8, 6)
    assert [shard.data.shape for shard in x.addressable_shards] == [(2, 8)] * 4
    np.testing.assert_array_equal(np.asarray(x)[:6], X[64:70])
    np.testing.assert_array_equal(np.asarray(y)[:6], Y[64:70])
    assert np.isfinite(np.asarray(x)).all()


def test_a_batch_that_divides_is_not_cut():
    (group, *_) = feed_of((X[:70], Y[:70])).epoch()
    assert (group.batches[0].rows, group.batches[0].padded, group.batches[0].cut) == (8, 8, None)


def test_every_batch_is_placed_exactly_once():
    placements = Placements()
    feed = feed_of((X[:70], Y[:70]), placements)
    for _ in feed.epoch():
        feed.prepare()
        feed.prepare()
    assert placements.log == [8] * 8 + [6]


def test_preparing_reads_one_group_ahead_and_no_further():
    data = Counted(numbers(9))
    feed, read = feed_of(data.stream(), group=2), []
    for _ in feed.epoch():
        feed.prepare()
        feed.prepare()
        read.append(data.read)
    assert read == [4, 6, 8, 9, 9]


def test_a_stream_that_lasts_is_not_read_beyond_the_steps_of_the_epoch():
    data = Counted(numbers(50))
    feed, seen, read = feed_of(data.stream(), steps=3), [], []
    for _ in range(3):
        for group in feed.epoch():
            feed.prepare()
            seen += firsts(group)
        read.append(data.read)
    assert seen == list(range(9))
    assert read == [3, 6, 9]


def test_a_look_at_the_first_batch_takes_nothing_away():
    data = Counted(numbers(5))
    feed = feed_of(data.stream())
    assert float(feed.peek()[0][0, 0]) == 0
    feed.rewind()
    assert [n for group in feed.epoch() for n in firsts(group)] == [0, 1, 2, 3, 4]


def test_a_look_at_a_dataset_reads_its_first_batch_alone():
    data = Batches(X[:70], Y[:70])
    feed = feed_of(data)
    np.testing.assert_array_equal(feed.peek()[0], X[:32])
    feed.restart()
    assert sum(len(group.batches) for group in feed.epoch()) == 3
    assert data.log == [0, 0, 1, 2]


def test_memory_that_a_generator_uses_again_is_copied_in_time():
    feed = feed_of(reusing(finite(X[:200], Y[:200])), group=3)
    groups = list(feed.epoch())
    placed = [np.asarray(batch.arrays[0])[: batch.rows] for group in groups for batch in group.batches]
    np.testing.assert_array_equal(np.concatenate(placed), X[:200])


def test_memory_that_a_dataset_uses_again_is_copied_in_time():
    class OneBuffer(Batches):
        buffer = np.empty((32, 8), "float32")

        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            self.buffer[:] = np.nan
            self.buffer[: len(x)] = x
            return self.buffer[: len(x)], y.copy()

    placed = [
        np.asarray(b.arrays[0])[: b.rows]
        for g in feed_of(OneBuffer(X[:70], Y[:70])).epoch()
        for b in g.batches
    ]
    np.testing.assert_array_equal(np.concatenate(placed), X[:70])


def test_the_number_of_batches_is_known_before_or_after_the_first_epoch():
    assert feed_of((X[:70], Y[:70])).num_batches == 9
    assert feed_of((X[:70], Y[:70]), steps=4).num_batches == 4
    feed = feed_of(finite(X[:70], Y[:70]))
    assert feed.num_batches is None
    assert len(list(feed.epoch())) == 3


def test_running_out_within_an_epoch_warns_once_and_each_epoch_starts_anew():
    feed = feed_of((X[:16], Y[:16]), steps=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lengths = [len(list(feed.epoch())) for _ in range(3)]
    assert lengths == [2, 2, 2]
    assert len(caught) == 1
    assert "the data: 2 of 3 steps" in str(caught[0].message)


def test_an_epoch_that_is_left_early_can_be_followed_by_a_full_one():
    feed = feed_of((X[:70], Y[:70]))
    for _ in feed.epoch():
        break
    feed.rewind()
    assert len(list(feed.epoch())) == 9


def test_datasets_hear_of_the_begin_and_end_of_an_epoch_even_if_it_breaks():
    heard = []

    class Data(Batches):
        def on_epoch_begin(self):
            heard.append("begin")

        def on_epoch_end(self):
            heard.append("end")

        def __getitem__(self, index):
            if index == 2:
                raise OSError("disk gone")
            return super().__getitem__(index)

    with pytest.raises(OSError, match="disk gone"):
        list(feed_of(Data(X[:128], Y[:128])).epoch())
    assert heard == ["begin", "end"]


def test_scalars_and_empty_parts_of_a_batch_go_whole_to_each_replica():
    feed = feed_of((X[:6], np.float32(3), None) for _ in range(1))
    (group,) = feed.epoch()
    x, scalar, nothing = group.batches[0].arrays
    assert x.shape == (8, 8) and nothing is None
    assert [float(shard.data) for shard in scalar.addressable_shards] == [3.0] * 4


def test_columns_that_stay_on_the_host_travel_with_their_batch():
    data = (({"x": X[i : i + 3], "id": np.array(["a", "b", "c"])},) for i in (0, 3))
    groups = list(feed_of(data, host_only=("id",)).epoch())
    assert [list(group.batches[0].host["id"]) for group in groups] == [["a", "b", "c"]] * 2
    assert all(set(group.batches[0].arrays[0]) == {"x"} for group in groups)


def test_an_eager_step_gets_the_whole_batch_on_every_replica():
    (group, *_) = feed_of((X[:8], Y[:8]), split=False).epoch()
    assert [shard.data.shape for shard in group.batches[0].arrays[0].addressable_shards] == [(8, 8)] * 4


# ------------------------------------------------------------------------------- names of columns


def test_columns_are_named_as_a_user_would_write_them():
    batch = ({"a": X, "b": [X, (X, {"c": X})]}, [Y], {"w": Y})
    names = [name for name, _ in columns.named(batch)]
    assert names == ["x['a']", "x['b'][0]", "x['b'][1][0]", "x['b'][1][1]['c']", "y[0]", "sample_weight['w']"]


def test_rows_are_counted_over_all_columns():
    assert columns.count_rows(({"a": X[:5]}, Y[:5], None), "here") == 5
    with pytest.raises(DataError, match=r"here: x\['a'\] has 5, y has 4"):
        columns.count_rows(({"a": X[:5]}, Y[:4]), "here")
    with pytest.raises(DataError, match="here has 0 rows"):
        columns.count_rows((X[:0], Y[:0]), "here")
    with pytest.raises(DataError, match="here has no column with rows"):
        columns.count_rows((np.float32(1),), "here")


@pytest.mark.parametrize("dtype", ["U3", "S3", "O", "M8[s]", "m8[s]"])
def test_only_numbers_go_to_devices(dtype):
    with pytest.raises(ColumnError, match=r"x\['when'\]"):
        columns.count_rows(({"when": np.zeros(3, dtype)},), "here")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float16", "float64", "complex64"])
def test_all_numbers_go_to_devices(dtype):
    assert columns.count_rows((np.zeros(3, dtype),), "here") == 3


def test_host_columns_are_taken_out_wherever_they_stand():
    batch = ([{"x": 1, "id": "a"}, {"y": 2}], {"name": "b", "z": 3})
    assert columns.take_host_only(batch, ("id", "name")) == (
        ([{"x": 1}, {"y": 2}], {"z": 3}),
        {"id": "a", "name": "b"},
    )
    assert columns.take_host_only(batch, ()) == (batch, {})


# --------------------------------------------------------------------------------- ahead, in fit


class Order(keras.callbacks.Callback):
    """Writes into the log that the data writes into, too."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def on_train_batch_begin(self, batch, logs=None):
        self.log.append(f"begin {batch}")

    def on_train_batch_end(self, batch, logs=None):
        self.log.append(f"end {batch}")

    def on_test_batch_end(self, batch, logs=None):
        self.log.append(f"end test {batch}")

    def on_predict_batch_end(self, batch, logs=None):
        self.log.append(f"end predict {batch}")


class Logged(Batches):
    def __init__(self, *args, log, **kwargs):
        super().__init__(*args, **kwargs)
        self.events = log

    def __getitem__(self, index):
        self.events.append(f"read {index}")
        return super().__getitem__(index)


def test_fit_reads_the_next_batch_before_callbacks_hear_of_this_one():
    model, log = model_on(4), []
    model.fit(X[:70], Y[:70], verbose=0)  # builds what waits for a first batch
    model.fit(Logged(X[:70], Y[:70], log=log), shuffle=False, callbacks=[Order(log)], verbose=0)
    assert log == ["read 0", "begin 0", "read 1", "end 0", "begin 1", "read 2", "end 1", "begin 2", "end 2"]


def test_evaluate_and_predict_read_ahead_too():
    model, log = model_on(4), []
    model.evaluate(X[:70], Y[:70], verbose=0)
    model.evaluate(Logged(X[:70], Y[:70], log=log), callbacks=[Order(log)], verbose=0)
    assert log == ["read 0", "read 1", "end test 0", "read 2", "end test 1", "end test 2"]
    log.clear()
    model.predict(Logged(X[:70], log=log), callbacks=[Order(log)], verbose=0)
    assert log == ["read 0", "read 1", "end predict 0", "read 2", "end predict 1", "end predict 2"]


def test_fit_reads_no_batch_beyond_the_last_epoch():
    model, data = model_on(4), Counted([(X[:32], Y[:32])] * 20)
    model.fit(data.stream(), steps_per_epoch=3, epochs=2, verbose=0)
    assert data.read == 6


def test_stopping_early_leaves_at_most_one_batch_unused():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    model, data = model_on(4), Counted([(X[:32], Y[:32])] * 20)
    model.fit(data.stream(), steps_per_epoch=9, callbacks=[Stop()], verbose=0)
    assert int(model.optimizer.iterations) == 2
    assert data.read == 3
