"""Arrays of every make give the one-device result, for any number of rows; the oracle of all input tests."""

import jax
import keras
import numpy as np
import pytest
from jax.experimental import sparse
from keras import layers

from tests.rooms.cases import CASES, assert_equal, built, replicas

BATCH = 32
X = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
W = np.random.default_rng(1).uniform(0.1, 2, 200).astype("float32")

_models, _oracles = {}, {}


class Seen(layers.Layer):
    """Counts rows inside the step: those of training, and all others."""

    def build(self, shape):
        self.trained = self.add_weight(shape=(), initializer="zeros", trainable=False, name="trained")
        self.looked_at = self.add_weight(shape=(), initializer="zeros", trainable=False, name="looked_at")

    def call(self, x, training=False):
        counter = self.trained if training else self.looked_at
        counter.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "float32"))
        return x


def counting(sparse=False):
    first = [] if sparse else [Seen(name="seen")]
    hidden, out = layers.Dense(16, activation="relu", name="d1"), layers.Dense(1, name="d2")
    model = keras.Sequential([keras.Input((8,), sparse=sparse), *first, hidden, out])
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def model_on(count):
    """The model M with row counters at its initial values, under a strategy or plain (None).

    Compiled steps stay from test to test; what waits for a first batch is tested with fresh models.
    """
    if count not in _models:
        model = built(counting, count and replicas(count))
        _models[count] = model, [np.asarray(v.value) for v in all_variables(model)]
    model, initial = _models[count]
    for variable, value in zip(all_variables(model), initial, strict=True):
        variable.assign(value)
    return model


def all_variables(model):
    return [*model.variables, *model.optimizer.variables]


def outcome(model, make, rows, *, held_out=13, batch_size=None, epochs=2, weighted=False, **fit):
    """Fit with validation, evaluate, predict; everything that came out, by name.

    `make(*columns)` turns arrays into what the user passes: one object, or a tuple of columns.
    """
    columns = (X, Y, W) if weighted else (X, Y)
    sized = {} if batch_size is None else {"batch_size": batch_size}
    data = lambda n, parts: _as_arguments(make(*(part[:n] for part in parts)))  # noqa: E731
    validation = make(*(part[:held_out] for part in columns))
    history = model.fit(
        **data(rows, columns), validation_data=validation, epochs=epochs, verbose=0, **sized, **fit
    )
    results = {f"history/{name}": np.array(values) for name, values in history.history.items()}
    evaluated = model.evaluate(**data(rows, columns), verbose=0, return_dict=True, **sized)
    results |= {f"evaluate/{name}": np.array(value) for name, value in evaluated.items()}
    results["predict"] = model.predict(**data(rows, columns[:1]), verbose=0, **sized)
    return results | {v.path: np.asarray(v.value) for v in all_variables(model)}


def _as_arguments(data):
    return dict(zip(("x", "y", "sample_weight"), data if isinstance(data, tuple) else (data,)))


def as_arrays(*columns):
    return columns


def expected(rows, *, batch_size=BATCH, epochs=2, held_out=13, weighted=False):
    """What one device with plain Keras gives for the first `rows` rows as arrays, in order."""
    key = rows, batch_size, epochs, held_out, weighted
    if key not in _oracles:
        _oracles[key] = outcome(
            model_on(None),
            as_arrays,
            rows,
            batch_size=batch_size,
            epochs=epochs,
            held_out=held_out,
            weighted=weighted,
            shuffle=False,
        )
        assert _oracles[key]["sequential/seen/trained"] == epochs * rows
    return _oracles[key]


def check(got, rows, **options):
    """All results equal one device; every row was trained on once per epoch and predicted once."""
    assert_equal(got, expected(rows, **options))
    assert got["sequential/seen/trained"] == options.get("epochs", 2) * rows
    assert got["predict"].shape == (rows, 1)


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize(
    "rows, batch_size", [(70, 32), (67, 32), (65, 32), (64, 32), (6, 3), (3, 32), (1, 32)]
)
def test_any_number_of_rows_equals_one_device_and_no_row_is_lost_or_repeated(rows, batch_size, count):
    options = {"batch_size": batch_size, "held_out": min(rows, 13)}
    got = outcome(model_on(count), as_arrays, rows, shuffle=False, **options)
    check(got, rows, **options)


def as_float64(*columns):
    return tuple(column.astype("float64") for column in columns)


def as_strided_views(*columns):
    return tuple(np.repeat(column, 2, axis=0)[::2] for column in columns)


def as_jax(*columns):
    return tuple(jax.numpy.asarray(column) for column in columns)


def as_jax_on_another_device(*columns):
    return tuple(jax.device_put(column, jax.devices()[7]) for column in columns)


def as_jax_split_over_devices(*columns):
    """Rows that lie on two devices, where they divide."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("other",))
    spec = lambda n: jax.sharding.PartitionSpec("other" if n % 2 == 0 else None)  # noqa: E731
    return tuple(jax.device_put(c, jax.sharding.NamedSharding(mesh, spec(len(c)))) for c in columns)


def as_pandas(x, *rest):
    pandas = pytest.importorskip("pandas")
    series = [pandas.Series(column.reshape(-1), name="y") for column in rest]
    return (pandas.DataFrame(x, columns=list("abcdefgh")), *series)


def as_frames_with_other_index(x, y):
    pandas = pytest.importorskip("pandas")
    index = np.arange(len(x))[::-1]  # rows go by position, whatever their labels
    return pandas.DataFrame(x, index=index), pandas.DataFrame(y, index=index)


@pytest.mark.parametrize(
    "make",
    [
        as_float64,
        as_strided_views,
        as_jax,
        as_jax_on_another_device,
        as_jax_split_over_devices,
        as_pandas,
        as_frames_with_other_index,
    ],
)
def test_arrays_of_every_make_equal_one_device(make):
    got = outcome(
        model_on(4), lambda *c: make(*c) if len(c) > 1 else make(*c, c[0][:, :1])[0], 70, shuffle=False
    )
    check(got, 70)


def test_frames_predict_without_targets():
    model = model_on(4)
    (frame,) = as_pandas(X[:67])
    np.testing.assert_allclose(
        model.predict(frame, verbose=0), model_on(None).predict(X[:67], verbose=0), atol=1e-5
    )


@pytest.mark.parametrize("make", [as_arrays, as_jax])
def test_sample_weights_of_every_make_equal_one_device(make):
    got = outcome(model_on(4), make, 70, weighted=True, shuffle=False)
    check(got, 70, weighted=True)
    assert not np.allclose(
        got["sequential/d1/kernel"], expected(70)["sequential/d1/kernel"], atol=1e-4
    )  # the weights do weigh


def test_whole_numbers_equal_one_device():
    x = np.random.default_rng(2).integers(-3, 4, (70, 8))  # int64, which JAX takes as int32
    y = (x[:, :1] > 0).astype("bool")
    results = []
    for count in (None, 4):
        model = model_on(count)
        history = model.fit(x, y, shuffle=False, epochs=2, verbose=0)
        results.append({"loss": np.array(history.history["loss"]), "predict": model.predict(x, verbose=0)})
    assert_equal(*reversed(results))


SPARSE = np.zeros((7, 8), "float32")
SPARSE[np.arange(7), np.arange(7)] = X[:7, 0]
SPARSE[np.arange(7), np.arange(1, 8)] = X[:7, 1]  # two numbers in each row: batches of one shape compile once


def as_scipy(x):
    return pytest.importorskip("scipy.sparse").csr_matrix(x)


@pytest.mark.parametrize("make", [as_scipy, sparse.BCOO.fromdense], ids=["scipy", "jax"])
def test_sparse_features_equal_one_device_with_the_same_rows_dense(make):
    results = []
    for strategy, x in ((None, SPARSE), (replicas(4), make(SPARSE))):
        model = built(lambda: counting(sparse=True), strategy)
        history = model.fit(x, Y[:7], batch_size=4, shuffle=False, epochs=2, verbose=0).history
        results.append({f"history/{name}": np.array(values) for name, values in history.items()})
        results[-1]["evaluate"] = np.array(model.evaluate(x, Y[:7], batch_size=4, verbose=0))
        results[-1]["predict"] = model.predict(x, batch_size=4, verbose=0)
        results[-1] |= {v.path: np.asarray(v.value) for v in model.variables}
    assert_equal(*reversed(results))
    assert results[1]["predict"].shape == (7, 1)


def test_validation_split_with_a_remainder_equals_one_device():
    results = []
    for count in (None, 4):
        model = model_on(count)
        history = model.fit(
            X[:100], Y[:100], validation_split=0.17, epochs=2, shuffle=False, verbose=0
        ).history
        results.append({name: np.array(values) for name, values in history.items()})
        assert float(model.get_layer("seen").trained.value) == 2 * 83
        assert float(model.get_layer("seen").looked_at.value) == 2 * 17
    assert_equal(*reversed(results))
    assert set(results[0]) == {"loss", "mae", "val_loss", "val_mae"}


@pytest.mark.parametrize("make", [as_jax, as_pandas])
def test_validation_split_takes_the_last_rows_of_arrays_of_every_make(make):
    results = []
    for count, kind in ((None, as_arrays), (4, make)):
        history = model_on(count).fit(
            *kind(X[:100], Y[:100]), validation_split=0.17, shuffle=False, verbose=0
        )
        results.append({name: np.array(values) for name, values in history.history.items()})
    assert_equal(*reversed(results))


def test_a_full_training_set_with_an_odd_validation_set_equals_one_device():
    check(outcome(model_on(4), as_arrays, 64, held_out=70, shuffle=False), 64, held_out=70)


@pytest.mark.parametrize("name", ["lists in and out", "dicts in and out"])
@pytest.mark.parametrize("rows", [37, 3])
def test_several_outputs_keep_their_structure_and_have_exactly_n_rows_in_order(name, rows):
    case = CASES[name]
    x = keras.tree.map_structure(lambda column: column[:rows], case.data().x)
    plain, ours = (built(case.build, s).predict(x, batch_size=16, verbose=0) for s in (None, replicas(4)))
    keras.tree.assert_same_structure(plain, ours)
    outputs = keras.tree.flatten(plain), keras.tree.flatten(ours)
    assert len(outputs[0]) > 1
    for one, four in zip(*outputs, strict=True):
        assert len(four) == rows
        np.testing.assert_allclose(four, one, atol=1e-5)


def test_predicted_rows_come_in_the_order_of_the_input():
    with replicas(4).scope():
        model = keras.Sequential([keras.Input((1,)), layers.Identity()])
    x = np.arange(67, dtype="float32")[:, None]
    np.testing.assert_array_equal(model.predict(x, batch_size=16, verbose=0), x)


def test_shuffling_reads_every_row_exactly_once_per_epoch():
    class Ids(layers.Layer):
        def build(self, shape):
            self.seen = self.add_weight(shape=(16,), initializer="zeros", trainable=False, name="ids")

        def call(self, x):
            self.seen.assign_add(keras.ops.sum(keras.ops.one_hot(x[:, 0], 16), axis=0))
            return keras.ops.cast(x, "float32")

    with replicas(4).scope():
        model = keras.Sequential([keras.Input((1,), dtype="int32"), Ids(), layers.Dense(1)])
        model.compile("sgd", "mse")
    ids = np.arange(16, dtype="int32")[:, None]
    model.fit(ids, ids, batch_size=5, epochs=3, shuffle=True, verbose=0)
    np.testing.assert_array_equal(model.layers[0].seen.value, np.full(16, 3.0))


def test_the_batch_size_is_the_global_one_whatever_the_number_of_replicas():
    model = model_on(4)
    model.fit(X[:128], Y[:128], batch_size=32, verbose=0)
    assert int(model.optimizer.iterations) == 4
    shares = replicas(4).describe(global_batch=32)
    assert (shares.global_batch, shares.batch_per_worker, shares.batch_per_replica) == (
        32,
        (32,),
        (8, 8, 8, 8),
    )


def test_whole_numbers_of_numpy_are_numbers_too():
    history = model_on(4).fit(X[:70], Y[:70], batch_size=np.int64(32), steps_per_epoch=np.int64(2), verbose=0)
    assert len(history.history["loss"]) == 1
