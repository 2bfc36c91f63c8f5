"""`distribute_datasets_from_function` with one worker: one batch for each replica, every row once."""

import keras
import numpy as np
import pytest

import phalanx
from phalanx.data.pipeline import Pipeline, PipelineSource
from phalanx.data.sharding import decide
from phalanx.data.source import open_source
from tests.rooms.cases import built, replicas
from tests.rooms.test_inputs_arrays import X, Y, counting
from tests.rooms.test_inputs_streams import Batches

ROWS = 70


def batches(size):
    x, y = X[:ROWS], Y[:ROWS]
    return [(x[first : first + size], y[first : first + size]) for first in range(0, ROWS, size)]


def whole(size):
    return Batches(X[:ROWS], Y[:ROWS], batch_size=size)


def model_on(strategy):
    return built(counting, strategy)


def generator(size):
    def make():
        yield from batches(size)

    return make()


def dataset(size):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X[:ROWS], Y[:ROWS])).batch(size)


def reusing(size):
    """A generator that writes each batch over the last one."""
    x, y = np.empty((size, 8), "float32"), np.empty((size, 1), "float32")
    for rows, targets in batches(size):
        x[: len(rows)], y[: len(rows)] = rows, targets
        yield x[: len(rows)], y[: len(rows)]


@pytest.mark.parametrize("make", [whole, generator, dataset, reusing])
def test_each_replica_takes_a_batch_and_the_result_is_that_of_one_device(make):
    one, many = model_on(phalanx.OneDeviceStrategy("cpu:0")), model_on(strategy := replicas(4))
    wanted = one.fit(X[:ROWS], Y[:ROWS], batch_size=36, shuffle=False, verbose=0)
    seen = []

    def pipeline(context):
        seen.append(context)
        return make(context.get_per_replica_batch_size(36))

    found = many.fit(strategy.distribute_datasets_from_function(pipeline), shuffle=False, verbose=0)
    assert seen == [phalanx.InputContext(1, 0, 4)], "called once"
    assert found.history["loss"] == pytest.approx(wanted.history["loss"], abs=1e-5)
    for a, b in zip(many.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    # 70 rows in batches of 9: two steps, of which the second ends with a batch of 7 rows
    assert strategy.report().rows == (18, 18, 18, 16)
    assert strategy.sharding["training data"].policy == "file"


def test_predict_and_validation_read_pipelines_and_one_replica_is_no_special_mode():
    for count in (1, 3):
        model = model_on(strategy := replicas(count))

        def pipeline(size):
            return strategy.distribute_datasets_from_function(lambda context: whole(size))

        history = model.fit(X, Y, epochs=2, validation_data=pipeline(16), verbose=0)
        results = model.evaluate(X[:ROWS], Y[:ROWS], verbose=0, return_dict=True)
        assert history.history["val_loss"][-1] == pytest.approx(results["loss"], abs=1e-5)
        for gather in (True, False):
            found = model.predict(pipeline(11), verbose=0, gather=gather)
            np.testing.assert_allclose(found, model.predict(X[:ROWS], verbose=0), atol=1e-5)
        np.testing.assert_array_equal(strategy.own_rows(ROWS, batch_size=9), np.arange(ROWS))


def test_a_context_refuses_a_batch_that_does_not_divide_and_names_one_that_does():
    context = phalanx.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=8)
    assert context.get_per_replica_batch_size(64) == 8
    with pytest.raises(ValueError, match=r"60 rows for 8 replicas\n.*get_per_replica_batch_size\(56\)"):
        context.get_per_replica_batch_size(60)
    with pytest.raises(ValueError, match="8 replicas"):
        context.get_per_replica_batch_size(0)
    with pytest.raises(phalanx.SettingError, match="input_pipeline_id=2"):
        phalanx.InputContext(2, 2, 2)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda: X, "ndarray, whole arrays"),
        (lambda: None, "x=None"),
        (lambda: Batches(X[:0], Y[:0]), "0 batches"),
    ],
)
def test_what_is_no_pipeline_is_refused(returned, said):
    strategy = replicas(2)
    model = model_on(strategy)
    with pytest.raises(phalanx.DataError, match=said):
        model.fit(strategy.distribute_datasets_from_function(lambda context: returned()), verbose=0)


def test_no_function_options_and_another_strategys_pipeline():
    strategy = replicas(2)
    with pytest.raises(phalanx.SettingError, match="dataset_fn=3"):
        strategy.distribute_datasets_from_function(3)
    with pytest.warns(phalanx.PhalanxWarning, match="options='fast'"):
        data = strategy.distribute_datasets_from_function(lambda context: whole(8), options="fast")
    with pytest.raises(phalanx.DataError, match="made for 2, the model trains on 4"):
        model_on(replicas(4)).fit(data, verbose=0)
    with pytest.raises(phalanx.SettingError, match="gather='no'"):
        model_on(strategy).predict(X, gather="no")


def test_sparse_batches_cannot_be_joined():
    strategy = replicas(2)
    from jax.experimental import sparse

    part = sparse.BCOO.fromdense(np.eye(4, 6, dtype="float32"))
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,), sparse=True), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = strategy.distribute_datasets_from_function(lambda context: iter_of([(part, np.ones((4, 1)))] * 2))
    with pytest.raises(phalanx.UnsupportedError, match="a sparse column"):
        model.fit(data, verbose=0)


def iter_of(items):
    yield from items


def told(*others):
    """A `tell` of a worker 0 beside others that say what is given, block by block."""
    said = [iter(each) for each in others]
    return lambda what, mine: [mine, *(next(each) for each in said)]


def test_host_columns_and_the_rows_of_other_workers_are_counted_but_not_read():
    """Two replicas here, two on another worker, which has less or more."""
    rows = [({"x": np.full((n, 1), n, "float32"), "id": np.array(["a"] * n, object)},) for n in (3, 3, 2)]
    context = phalanx.InputContext(2, 0, 4)
    kind = "[\"x['x'] (1,) float32\"]"
    tell = told([f"[[[3, 3], [3, 1], [1, 0]], {kind}]"])
    pipeline = Pipeline(iter_of(rows), context, 2, tell)
    source = open_source(pipeline, name="data", host_only=("id",))
    assert isinstance(source, PipelineSource) and source.sharding == decide("pipelines", 2)
    found = list(source.batches())
    assert [each.sizes for each in found] == [(3, 3, 3, 3), (2, 0, 3, 1), (0, 0, 1, 0)]
    assert [each.rows for each in found] == [12, 6, 1]
    assert (
        [len(each.batch[0]["x"]) for each in found]
        == [len(each.batch[0]["id"]) for each in found]
        == [6, 2, 0]
    )
