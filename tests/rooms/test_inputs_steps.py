"""Steps per epoch, per validation and per execution; and columns that stay on the host."""

import warnings

import keras
import numpy as np
import pytest

import phalanx
from tests.rooms.cases import assert_equal
from tests.rooms.test_inputs_arrays import BATCH, X, Y, all_variables, expected, model_on
from tests.rooms.test_inputs_streams import Batches, endless, finite


def warned(run):
    """What `run` returns, and the texts of Phalanx's and Keras's warnings meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


def as_results(model, history):
    results = {f"history/{name}": np.array(values) for name, values in history.history.items()}
    return results | {v.path: np.asarray(v.value) for v in all_variables(model)}


# ------------------------------------------------------------------- reports row 8: steps per epoch


def test_without_steps_each_epoch_reads_the_data_to_its_end():
    model = model_on(4)
    history = model.fit(X[:70], Y[:70], epochs=3, verbose=0)
    assert len(history.history["loss"]) == 3
    assert int(model.optimizer.iterations) == 9


def test_more_steps_than_data_ends_each_epoch_early_as_on_one_device_and_warns_once():
    results = []
    for count in (None, 4):
        model = model_on(count)
        options = {"batch_size": BATCH, "steps_per_epoch": 5, "epochs": 3, "shuffle": False, "verbose": 0}
        history, texts = warned(lambda: model.fit(X[:70], Y[:70], **options))
        results.append(as_results(model, history))
        if count:
            assert len(texts) == 1
            assert "training data: 3 of 5 steps" in texts[0] and "repeat()" in texts[0]
    assert_equal(*reversed(results))
    assert len(results[1]["history/loss"]) == 3


def test_steps_of_an_endless_generator_give_epochs_of_that_many_steps():
    model = model_on(4)
    history, texts = warned(
        lambda: model.fit(endless(X[:70], Y[:70]), steps_per_epoch=2, epochs=3, verbose=0)
    )
    assert texts == []
    assert len(history.history["loss"]) == 3
    assert int(model.optimizer.iterations) == 6
    plain = model_on(None)
    for batch in [*finite(X[:70], Y[:70])] * 2:
        plain.train_on_batch(*batch)
    assert_equal(*({v.path: np.asarray(v.value) for v in all_variables(m)} for m in (model, plain)))


@pytest.mark.parametrize("make", [Batches, lambda *columns: columns], ids=["dataset", "arrays"])
def test_fewer_steps_than_batches_go_on_through_the_data_as_on_one_device(make):
    results = []
    for count in (None, 4):
        model, data = model_on(count), make(X[:96], Y[:96])
        arguments = (
            {"x": data} if isinstance(data, Batches) else {"x": data[0], "y": data[1], "batch_size": BATCH}
        )
        history = model.fit(**arguments, steps_per_epoch=1, epochs=5, shuffle=False, verbose=0)
        results.append(as_results(model, history))
    assert_equal(*reversed(results))
    assert len(results[1]["history/loss"]) == 5


def test_steps_without_a_batch_size_share_the_rows_as_on_one_device():
    results = []
    for count in (None, 4):
        model = model_on(count)
        history = model.fit(X[:70], Y[:70], steps_per_epoch=5, epochs=2, shuffle=False, verbose=0)
        results.append(as_results(model, history))
    assert_equal(*reversed(results))
    assert results[1]["adam/iteration"] == 10


def test_a_finite_generator_that_ends_within_its_steps_ends_training_with_one_warning_per_cause():
    model = model_on(4)
    history, texts = warned(lambda: model.fit(finite(X[:70], Y[:70]), steps_per_epoch=2, epochs=3, verbose=0))
    assert len(history.history["loss"]) == 2
    assert float(model.get_layer("seen").trained.value) == 70
    assert [text.splitlines()[1] for text in texts] == [
        "  received: training data: 1 of 2 steps, then the data ended",
        "  received: training data had no batch left for epoch 3; training ends here",
    ]


# --------------------------------------------------------------------------- steps of validation


def test_validation_steps_equal_one_device():
    results = []
    for count in (None, 4):
        model = model_on(count)
        options = {
            "validation_steps": 2,
            "validation_batch_size": BATCH,
            "epochs": 2,
            "shuffle": False,
            "verbose": 0,
        }
        history = model.fit(
            X[:70], Y[:70], batch_size=BATCH, validation_data=(X[70:170], Y[70:170]), **options
        )
        results.append(as_results(model, history))
        assert float(model.get_layer("seen").looked_at.value) == 2 * 64
    assert_equal(*reversed(results))


def test_a_validation_batch_size_of_its_own_is_global_too():
    model, batches = model_on(4), []
    count = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: batches.append(batch))
    model.fit(
        X[:64],
        Y[:64],
        batch_size=BATCH,
        validation_data=(X[:70], Y[:70]),
        validation_batch_size=35,
        callbacks=[count],
        verbose=0,
    )
    assert batches == [0, 1]


def test_evaluate_with_steps_reads_that_many_batches():
    model = model_on(4)
    model.fit(X[:70], Y[:70], epochs=2, shuffle=False, verbose=0)
    got = model.evaluate(X[:200], Y[:200], batch_size=35, steps=2, verbose=0)
    wanted = model.evaluate(X[:70], Y[:70], verbose=0)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert wanted[0] == pytest.approx(expected(70)["evaluate/loss"], abs=1e-5)


def test_predict_with_steps_gives_the_rows_of_that_many_batches():
    model = model_on(4)
    got = model.predict(X[:200], batch_size=35, steps=2, verbose=0)
    np.testing.assert_allclose(got, model.predict(X[:70], verbose=0), atol=1e-6)


# ---------------------------------------------------------------------------- steps per execution


class Indexes(keras.callbacks.Callback):
    """The batches that callbacks hear of."""

    def __init__(self):
        super().__init__()
        self.seen = {name: [] for name in ("train", "test", "predict")}

    def on_train_batch_begin(self, batch, logs=None):
        self.seen["train"].append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.seen["train"][-1] = self.seen["train"][-1], batch

    def on_test_batch_begin(self, batch, logs=None):
        self.seen["test"].append(batch)

    def on_test_batch_end(self, batch, logs=None):
        self.seen["test"][-1] = self.seen["test"][-1], batch

    def on_predict_batch_begin(self, batch, logs=None):
        self.seen["predict"].append(batch)

    def on_predict_batch_end(self, batch, logs=None):
        self.seen["predict"][-1] = self.seen["predict"][-1], batch


GROUPS = {1: [(i, i) for i in range(10)], 3: [(0, 2), (3, 5), (6, 8), (9, 9)]}


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_per_execution_change_no_number_and_callbacks_hear_the_true_last_batch(steps):
    """Ten batches: Keras itself says 11 for the last one of groups of three."""
    plain = model_on(None)
    options = {"batch_size": 7, "verbose": 0}
    history = plain.fit(X[:70], Y[:70], validation_data=(X[:65], Y[:65]), epochs=2, shuffle=False, **options)
    wanted = as_results(plain, history) | {"predict": plain.predict(X[:70], **options)}

    model, heard = model_on(4), Indexes()
    before, model.steps_per_execution = model.steps_per_execution, steps
    try:
        history = model.fit(
            X[:70],
            Y[:70],
            validation_data=(X[:65], Y[:65]),
            epochs=2,
            shuffle=False,
            callbacks=[heard],
            **options,
        )
        got = as_results(model, history) | {"predict": model.predict(X[:70], callbacks=[heard], **options)}
    finally:
        model.steps_per_execution = before
    assert_equal(got, wanted)
    assert heard.seen == {"train": GROUPS[steps] * 2, "test": GROUPS[steps] * 2, "predict": GROUPS[steps]}


def test_steps_per_execution_with_steps_per_epoch_reads_no_more_than_the_epoch():
    model, data = model_on(4), Batches(X[:70], Y[:70], batch_size=7)
    before, model.steps_per_execution = model.steps_per_execution, 3
    try:
        model.fit(data, steps_per_epoch=4, epochs=2, shuffle=False, verbose=0)
    finally:
        model.steps_per_execution = before
    *looks, first = data.log[:-7]  # a model that is not built looks at the first batch for its shapes
    assert set(looks) <= {0}
    assert [first, *data.log[-7:]] == list(range(8))
    assert int(model.optimizer.iterations) == 8


# ------------------------------------------------- reports row 25: columns that stay on the host


def host_ids(data, rows=70, **compile_with):
    """The ids that a callback meets during predict, each batch of them as long as its outputs."""
    found = []

    def meet(batch, logs):
        assert len(logs["id"]) == len(logs["outputs"])
        found.extend(logs["id"])

    with phalanx.MirroredStrategy([f"cpu:{i}" for i in range(4)], host_only=["id"]).scope():
        inputs = keras.Input((8,), name="x")
        model = keras.Model({"x": inputs}, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", **compile_with)
    hear = keras.callbacks.LambdaCallback(on_predict_batch_end=meet)
    assert model.predict(data, verbose=0, callbacks=[hear]).shape == (rows, 1)
    return found


IDS = np.array([f"row {i}" for i in range(200)])


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("rows", [70, 66])
def test_strings_that_stay_on_the_host_keep_step_with_the_outputs(rows, steps):
    data = {"x": X[:rows], "id": IDS[:rows]}
    assert host_ids(data, rows, steps_per_execution=steps) == list(IDS[:rows])


def test_strings_in_batches_of_a_generator_keep_step_with_the_outputs():
    assert host_ids(({"x": x, "id": ids},) for x, ids in finite(X[:70], IDS[:70])) == list(IDS[:70])


def test_training_goes_on_without_the_columns_that_stay_on_the_host():
    def build():
        inputs = keras.Input((8,), name="x")
        model = keras.Model({"x": inputs}, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    with phalanx.MirroredStrategy(["cpu:0", "cpu:1"], host_only=["id"]).scope():
        keras.utils.set_random_seed(0)
        model = build()
    keras.utils.set_random_seed(0)
    plain = build()
    options = {"epochs": 2, "shuffle": False, "verbose": 0}
    held_out = {"x": X[:13], "id": IDS[:13]}, Y[:13]
    got = model.fit({"x": X[:70], "id": IDS[:70]}, Y[:70], validation_data=held_out, **options).history
    wanted = plain.fit({"x": X[:70]}, Y[:70], validation_data=({"x": X[:13]}, Y[:13]), **options).history
    assert_equal(got, wanted)


def test_validation_split_and_shuffling_keep_strings_beside_their_rows():
    """The part that is split off is validated on, and a shuffled epoch still meets the device columns alone."""
    inputs = keras.Input((8,), name="x")
    with phalanx.MirroredStrategy(["cpu:0", "cpu:1"], host_only=["id"]).scope():
        model = keras.Model({"x": inputs}, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    history = model.fit({"x": X[:20], "id": IDS[:20]}, Y[:20], validation_split=0.25, shuffle=True, verbose=0)
    wanted = model.evaluate({"x": X[15:20], "id": IDS[15:20]}, Y[15:20], verbose=0)
    assert history.history["val_loss"][0] == pytest.approx(wanted, abs=1e-5)
