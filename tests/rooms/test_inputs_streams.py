"""PyDatasets and generators give the one-device result of the same rows as arrays, none lost or read twice."""

import itertools
import logging
import threading

import jax
import keras
import numpy as np
import pytest
from keras import layers

import phalanx
from tests.rooms.cases import assert_equal, built, replicas
from tests.rooms.test_inputs_arrays import (
    BATCH,
    Seen,
    X,
    Y,
    all_variables,
    check,
    counting,
    expected,
    model_on,
    outcome,
)


class Batches(keras.utils.PyDataset):
    """Columns in batches; keeps a log of the batches that it was asked for."""

    def __init__(self, *columns, batch_size=BATCH, **workers):
        super().__init__(**workers)
        self.columns, self.size, self.log = columns, batch_size, []

    def __len__(self):
        return -(-len(self.columns[0]) // self.size)

    def __getitem__(self, index):
        self.log.append(index)
        rows = slice(index * self.size, (index + 1) * self.size)
        return tuple(column[rows] for column in self.columns)


class EndlessBatches(Batches):
    """The same without a known end."""

    num_batches = None

    def __getitem__(self, index):
        return super().__getitem__(index % len(self))


def finite(*columns, size=BATCH):
    for start in range(0, len(columns[0]), size):
        yield tuple(column[start : start + size] for column in columns)


def endless(*columns, size=BATCH):
    while True:
        yield from finite(*columns, size=size)


def reusing(source):
    """The batches of a generator, each in the memory of the one before, which is spoilt as soon as it is read."""
    memory = {}
    for batch in source:
        views = []
        for i, column in enumerate(batch):
            buffer = memory.setdefault(i, np.empty((BATCH, *column.shape[1:]), column.dtype))
            buffer[:] = np.nan
            buffer[: len(column)] = column
            views.append(buffer[: len(column)])
        yield tuple(views)
        for buffer in memory.values():
            buffer[:] = np.nan


@pytest.mark.parametrize("workers", [{}, {"workers": 2}], ids=["no workers", "two workers"])
@pytest.mark.parametrize("rows", [70, 65])
def test_a_dataset_of_batches_equals_one_device(rows, workers):
    got = outcome(model_on(4), lambda *columns: Batches(*columns, **workers), rows, shuffle=False)
    check(got, rows)


@pytest.mark.parametrize("workers", [{}, {"workers": 2}], ids=["no workers", "two workers"])
def test_a_dataset_that_a_fresh_model_is_built_from_still_gives_its_first_batch_first(workers):
    data = Batches(X[:70], Y[:70], **workers)
    model = built(counting, replicas(4))
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    for name in ("loss", "mae"):
        np.testing.assert_allclose(history[name], expected(70)[f"history/{name}"], atol=1e-5)


@pytest.mark.parametrize("workers", [{}, {"workers": 2}], ids=["no workers", "two workers"])
def test_a_shuffled_dataset_gives_each_row_exactly_once_per_epoch(workers):
    class Ids(layers.Layer):
        def build(self, shape):
            self.seen = self.add_weight(shape=(16,), initializer="zeros", trainable=False, name="ids")

        def call(self, x):
            self.seen.assign_add(keras.ops.sum(keras.ops.one_hot(x[:, 0], 16), axis=0))
            return keras.ops.cast(x, "float32")

    def build():
        model = keras.Sequential([keras.Input((1,), dtype="int32"), Ids(), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    ids = np.arange(16, dtype="int32")[:, None]
    counts = []
    after_epoch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: counts.append(np.asarray(model.layers[0].seen.value).copy())
    )
    model = built(build, replicas(4))
    model.fit(
        Batches(ids, ids, batch_size=3, **workers), epochs=3, shuffle=True, callbacks=[after_epoch], verbose=0
    )
    np.testing.assert_array_equal(np.array(counts), np.array([[1.0] * 16, [2.0] * 16, [3.0] * 16]))


def test_each_batch_of_a_dataset_is_loaded_once_per_epoch():
    data, held_out = Batches(X[:128], Y[:128]), Batches(X[:70], Y[:70])
    model = model_on(4)
    model.fit(data, validation_data=held_out, epochs=2, shuffle=False, verbose=0)
    data.log.clear(), held_out.log.clear()
    model.fit(data, validation_data=held_out, epochs=2, shuffle=False, verbose=0)
    assert data.log == [0, 1, 2, 3] * 2
    assert held_out.log == [0, 1, 2] * 2


class Reshuffled(Batches):
    """Shuffles its own rows at the end of each epoch, as Keras's guide shows."""

    def __init__(self, *columns):
        super().__init__(*columns)
        self.rng, self.ends = np.random.default_rng(3), 0

    def on_epoch_end(self):
        self.ends += 1
        order = self.rng.permutation(len(self.columns[0]))
        self.columns = tuple(column[order] for column in self.columns)


def test_a_dataset_that_shuffles_itself_at_the_end_of_an_epoch_equals_one_device():
    results, ends = [], []
    for count in (None, 4):
        model, data = model_on(count), Reshuffled(X[:70], Y[:70])
        history = model.fit(data, epochs=3, shuffle=False, verbose=0).history
        results.append({name: np.array(values) for name, values in history.items()})
        results[-1] |= {v.path: np.asarray(v.value) for v in all_variables(model)}
        ends.append(data.ends)
    assert_equal(*reversed(results))
    assert ends[0] == ends[1]


def test_workers_are_gone_after_fit_evaluate_and_predict():
    before = set(threading.enumerate())
    model, workers = model_on(4), {"workers": 2}
    model.fit(Batches(X[:70], Y[:70], **workers), validation_data=Batches(X[:9], Y[:9], **workers), verbose=0)
    model.evaluate(Batches(X[:70], Y[:70], **workers), verbose=0)
    model.predict(Batches(X[:70], **workers), verbose=0)
    assert not {t for t in threading.enumerate() if t.is_alive()} - before


@pytest.mark.parametrize("workers", [{}, {"workers": 2}], ids=["no workers", "two workers"])
def test_an_endless_dataset_with_steps_equals_one_device(workers):
    model = model_on(4)
    data, held_out = (EndlessBatches(X[:n], Y[:n], **workers) for n in (70, 13))
    history = model.fit(
        data, steps_per_epoch=3, validation_data=held_out, validation_steps=1, epochs=2, verbose=0
    ).history
    assert_equal(
        {f"history/{name}": values for name, values in history.items()},
        {name: value for name, value in expected(70).items() if name.startswith("history/")},
    )


def test_steps_per_epoch_go_on_through_a_dataset_with_workers_and_a_short_queue():
    """Six batches in three epochs of two steps: each is trained on once, in order."""
    model = model_on(4)
    data = Batches(X[:70], Y[:70], batch_size=13, workers=2, max_queue_size=1)
    model.fit(data, steps_per_epoch=2, epochs=3, shuffle=False, verbose=0)
    plain = model_on(None)
    plain.fit(X[:70], Y[:70], batch_size=13, shuffle=False, verbose=0)
    assert float(model.get_layer("seen").trained.value) == 70
    assert_equal(*({v.path: np.asarray(v.value) for v in all_variables(m)} for m in (model, plain)))


@pytest.mark.parametrize("workers", [{}, {"workers": 2}], ids=["no workers", "two workers"])
def test_validation_steps_read_the_same_first_batches_after_each_epoch(workers):
    """With a rate of zero, equal batches give equal numbers."""
    model = model_on(4)
    model.optimizer.learning_rate = 0.0
    held_out = Batches(X[:128], Y[:128], batch_size=13, **workers)
    history = model.fit(
        X[:70], Y[:70], validation_data=held_out, validation_steps=1, epochs=3, verbose=0
    ).history
    first = expected(70)["history/val_loss"][0]
    model.optimizer.learning_rate = 1e-2
    assert history["val_loss"] == [history["val_loss"][0]] * 3
    assert abs(history["val_loss"][0] - first) > 1e-6  # the weights of the oracle had moved by then


@pytest.mark.parametrize("wrap", [lambda g: g, reusing], ids=["own memory", "reused memory"])
def test_a_finite_generator_gives_one_epoch_equal_to_one_device(wrap):
    model = built(counting, replicas(4))  # fresh: loss and metrics are built from the first batch
    kind = lambda *columns: wrap(finite(*columns))  # noqa: E731
    check(outcome(model, kind, 70, epochs=1), 70, epochs=1)


@pytest.mark.parametrize("rows", [67, 3])
def test_a_finite_generator_with_a_remainder_equals_one_device(rows):
    options = {"epochs": 1, "held_out": min(rows, 13)}
    check(outcome(model_on(4), finite, rows, **options), rows, **options)


@pytest.mark.parametrize("wrap", [lambda g: g, reusing], ids=["own memory", "reused memory"])
def test_an_endless_generator_with_steps_equals_one_device(wrap):
    model = built(counting, replicas(4))
    history = model.fit(wrap(endless(X[:70], Y[:70])), steps_per_epoch=3, epochs=2, verbose=0).history
    for name in ("loss", "mae"):
        np.testing.assert_allclose(history[name], expected(70)[f"history/{name}"], atol=1e-5)
    assert float(model.get_layer("seen").trained.value) == 140


def test_generators_with_steps_evaluate_and_predict_as_one_device():
    model = model_on(4)
    model.fit(X[:70], Y[:70], epochs=2, shuffle=False, verbose=0)
    got = model.evaluate(endless(X[:70], Y[:70]), steps=3, verbose=0, return_dict=True)
    for name, value in got.items():
        np.testing.assert_allclose(value, expected(70)[f"evaluate/{name}"], atol=1e-5)
    predicted = model.predict(endless(X[:70]), steps=3, verbose=0)
    np.testing.assert_allclose(predicted, expected(70)["predict"], atol=1e-5)


@pytest.mark.parametrize("sizes", [(5, 1, 7)])
def test_batches_of_odd_sizes_equal_one_device(sizes):
    def generator(x, y):
        start = 0
        for size in sizes:
            yield x[start : start + size], y[start : start + size]
            start += size

    results = []
    for count in (None, 4):
        model = model_on(count)
        # One device reads them as a list of arrays, one update each: plain Keras loses a batch of generators.
        if count is None:
            for x, y in generator(X, Y):
                model.train_on_batch(x, y)
        else:
            model.fit(generator(X, Y), verbose=0)
        results.append({v.path: np.asarray(v.value) for v in all_variables(model)})
    assert_equal(*reversed(results))
    assert results[1]["sequential/seen/trained"] == sum(sizes)


@pytest.mark.parametrize("make", [Batches, finite], ids=["dataset", "generator"])
def test_weights_per_row_come_along_in_batches(make):
    options = {"weighted": True, "epochs": 1}
    settings = {"shuffle": False} if make is Batches else {}
    check(outcome(model_on(4), make, 70, **options, **settings), 70, **options)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.seen, self.hidden, self.out = Seen(), layers.Dense(16, activation="relu"), layers.Dense(1)

    def call(self, x, training=False):
        return self.out(self.hidden(self.seen(x, training=training)))


def subclassed():
    model = Subclassed()
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("wrap", [lambda g: g, reusing], ids=["own memory", "reused memory"])
def test_an_unbuilt_model_fed_by_a_generator_loses_no_row(wrap):
    """Plain Keras builds from the first batch and forgets to train on it."""
    plain, ours = built(subclassed), built(subclassed, replicas(4))
    ours.fit(wrap(finite(X[:70], Y[:70])), verbose=0)
    assert float(ours.seen.trained.value) == 70
    plain.fit(X[:70], Y[:70], shuffle=False, verbose=0)
    values = [{v.path: np.asarray(v.value) for v in m.trainable_variables} for m in (ours, plain)]
    assert_equal(*values)


def test_an_unbuilt_model_predicts_every_row_of_a_generator():
    plain, ours = built(subclassed), built(subclassed, replicas(4))
    got = ours.predict(finite(X[:70]), verbose=0)
    assert got.shape == (70, 1)
    np.testing.assert_allclose(got, plain.predict(X[:70], verbose=0), atol=1e-5)


def test_an_unbuilt_model_evaluates_every_row_of_a_generator():
    plain, ours = built(subclassed), built(subclassed, replicas(4))
    got = ours.evaluate(finite(X[:70], Y[:70]), verbose=0)
    assert float(ours.seen.looked_at.value) == 70
    np.testing.assert_allclose(got, plain.evaluate(X[:70], Y[:70], verbose=0), atol=1e-5)


@pytest.mark.parametrize("make", [Batches, finite], ids=["dataset", "generator"])
def test_batches_whose_length_varies_equal_one_device(make):
    """Sequences of 3, 5 and 4 steps, the last batch a remainder of 2 rows."""
    rng = np.random.default_rng(0)
    batches = [
        (rng.normal(size=(rows, steps, 2)).astype("float32"), rng.normal(size=(rows, 1)).astype("float32"))
        for rows, steps in ((8, 3), (8, 5), (2, 4))
    ]

    class Varying(Batches):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index][: len(self.columns)]

    def build():
        model = keras.Sequential(
            [keras.Input((None, 2)), layers.Dense(3, "tanh"), layers.GlobalMaxPooling1D(), layers.Dense(1)]
        )
        model.compile("adam", "mse", metrics=["mae"])
        return model

    def data(parts):
        return Varying(*range(parts)) if make is Batches else (batch[:parts] for batch in batches)

    plain, ours = built(build), built(build, replicas(4))
    for x, y in batches:
        plain.train_on_batch(x, y)
    ours.fit(data(2), verbose=0, **({"shuffle": False} if make is Batches else {}))
    assert_equal(*({v.path: np.asarray(v.value) for v in all_variables(m)} for m in (ours, plain)))
    wanted = np.concatenate([plain.predict_on_batch(x) for x, _ in batches])
    got = ours.predict(data(1), verbose=0)
    assert got.shape == (18, 1)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    losses = [float(np.mean((plain.predict_on_batch(x) - y) ** 2)) * len(x) for x, y in batches]
    assert ours.evaluate(data(2), verbose=0)[0] == pytest.approx(sum(losses) / 18, abs=1e-5)


class Compilations(logging.Handler):
    """The names of the functions that XLA compiled."""

    def __init__(self):
        super().__init__()
        self.names = []

    def emit(self, record):
        text = record.getMessage()
        if text.startswith("Finished XLA compilation of"):
            self.names.append(text.split()[4])

    def __enter__(self):
        self._logger = logging.getLogger("jax._src.dispatch")
        self._before = self._logger.propagate
        self._logger.addHandler(self)
        self._logger.propagate = False
        self._log = jax.log_compiles()
        self._log.__enter__()
        return self

    def __exit__(self, *exception):
        self._log.__exit__(*exception)
        self._logger.removeHandler(self)
        self._logger.propagate = self._before


@pytest.mark.parametrize("make", ["arrays", "dataset", "generator"])
def test_a_remainder_is_compiled_once_and_not_once_per_epoch(make):
    data = {
        "arrays": lambda: {"x": X[:67], "y": Y[:67]},
        "dataset": lambda: {"x": Batches(X[:67], Y[:67])},
        "generator": lambda: {"x": endless(X[:67], Y[:67]), "steps_per_epoch": 3},
    }[make]()
    model = built(counting, replicas(4))
    with Compilations() as compiled:
        model.fit(**data, epochs=3, verbose=0)
    steps = [name for name in compiled.names if "run" in name]
    assert len(steps) == 2, compiled.names


def test_a_generator_serves_fit_again_where_the_first_fit_stopped():
    """No batch is lost between two fits on one generator, though Keras reads two of them ahead."""
    model, data = model_on(4), endless(X[:200], Y[:200])
    model.fit(data, steps_per_epoch=1, verbose=0)
    model.fit(data, steps_per_epoch=1, verbose=0)
    plain = model_on(None)
    for x, y in itertools.islice(finite(X, Y), 2):
        plain.train_on_batch(x, y)
    assert_equal(*({v.path: np.asarray(v.value) for v in all_variables(m)} for m in (model, plain)))


def test_none_in_the_middle_of_a_generator_is_an_error_and_not_its_end():
    model = model_on(2)

    def batches():
        yield X[:4], Y[:4]
        yield None
        yield X[:4], Y[:4]

    with pytest.raises(phalanx.DataError, match="a batch of type NoneType"):
        model.fit(batches(), verbose=0)


@pytest.mark.parametrize("workers", [{}, {"workers": 2}], ids=["no workers", "two workers"])
def test_none_from_a_dataset_is_kerass_error_and_no_wait_without_end(workers):
    class Holes(Batches):
        def __getitem__(self, index):
            return None if index == 2 else super().__getitem__(index)

    with pytest.raises(ValueError, match="must return a tuple or a dict"):
        model_on(2).fit(Holes(X[:128], Y[:128], **workers), shuffle=False, verbose=0)
