"""Mistakes in data and settings: one clear error each, before any step, and nothing is broken afterwards."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import phalanx
from phalanx import (
    ColumnError,
    DataError,
    DeviceError,
    PhalanxWarning,
    ScopeError,
    SettingError,
    UnsupportedError,
)
from tests.rooms.cases import assert_equal, built, replicas
from tests.rooms.test_inputs_arrays import BATCH, X, Y, all_variables, model_on
from tests.rooms.test_inputs_streams import Batches, finite

STRINGS = np.array([f"row {i}" for i in range(70)])


class Began(keras.callbacks.Callback):
    """Counts the batches that begin."""

    count = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.count += 1


def parts(error):
    """The three parts of a text: rule, what was received, next line to paste."""
    rule, received, *paste = str(error.value).split("\n")
    assert rule.endswith("."), rule
    assert received.startswith("  received: "), received
    assert paste[0].startswith("  next:     ") and len(paste) == 1, paste
    return rule, received.removeprefix("  received: "), paste[0].removeprefix("  next:     ")


def values(model):
    return {v.path: np.asarray(v.value) for v in all_variables(model)}


def assert_untouched(model, before):
    """No variable changed by a bit, not even one that is no number."""
    assert values(model).keys() == before.keys()
    assert all(np.array_equal(value, before[name], equal_nan=True) for name, value in values(model).items())


def refused(kind, received, paste, *args, model=None, **fit):
    """`fit` raises before its first step, weights stay as they are, and the text says what was found."""
    model, began = model or model_on(4), Began()
    before = values(model)
    with pytest.raises(kind) as error:
        model.fit(*args, callbacks=[began], verbose=0, **fit)
    assert began.count == 0
    assert_untouched(model, before)
    rule, got, line = parts(error)
    assert received in got, error.value
    assert paste in line, error.value
    return rule


# ---------------------------------------------------------------------------------------- columns


def with_ids():
    """A model of two features, of which nobody has turned one into numbers."""
    x, ids = keras.Input((8,), name="x"), keras.Input((1,), name="id")
    model = keras.Model({"x": x, "id": ids}, layers.Dense(1)(layers.Concatenate()([x, ids])))
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize(
    "ids",
    [
        STRINGS,
        STRINGS.astype(object),
        STRINGS.astype("S"),
        np.array([[1.0]] * 69 + [[1.0, 2.0]], dtype=object),
    ],
    ids=["strings", "objects", "bytes", "unequal lengths"],
)
def test_a_column_without_numbers_is_named_before_the_first_step(ids):
    """Reports row 25."""
    with replicas(4).scope():
        model = with_ids()
    rule = refused(
        ColumnError, "x['id'] of dtype", "host_only=['id']", {"x": X[:70], "id": ids}, Y[:70], model=model
    )
    assert "numbers" in rule
    with pytest.raises(TypeError):
        model.evaluate({"x": X[:70], "id": ids}, Y[:70], verbose=0)
    with pytest.raises(TypeError):
        model.predict({"x": X[:70], "id": ids}, verbose=0)


@pytest.mark.parametrize(
    "ids", [list(STRINGS), [[1.0]] * 69 + [[1.0, 2.0]]], ids=["strings", "unequal lengths"]
)
def test_a_list_that_is_no_column_is_named_and_not_printed_row_by_row(ids):
    """Reports row 25: a list of rows of unequal length."""
    refused(ColumnError, "x['id']", "x['id']", {"x": X[:70], "id": ids}, Y[:70])
    refused(ColumnError, "y", "y", X[:70], ids)


def test_targets_without_numbers_are_named():
    refused(ColumnError, "y of dtype <U6", "np.unique(y, return_inverse=True)", X[:70], STRINGS)
    refused(ColumnError, "y[1] of dtype <U6", "y[1]", X[:70], [Y[:70], STRINGS])


def test_lists_of_numbers_are_no_columns_and_the_remedy_fits_what_is_in_them():
    refused(ColumnError, "y of type list", 'np.asarray(y, "float32")', X[:3], [1.0, 2.0, 3.0])
    refused(ColumnError, "sample_weight of type list", "np.asarray", X[:2], Y[:2], sample_weight=[1.0, 2.0])
    refused(ColumnError, "y of type list", "np.unique(y", X[:3], ["a", "b", "c"])
    refused(ColumnError, "y of type list", "pad_sequences(y", X[:2], [[1.0], [1.0, 2.0]])
    with pytest.raises(ColumnError, match="x of type list"):
        model_on(2).train_on_batch([[1.0] * 8], [[1.0]])


def test_rows_given_as_pairs_are_named():
    pairs = list(zip(X[:3], Y[:3], strict=True))
    refused(DataError, "a list of 3 pairs", "zip(*pairs)", pairs)


def test_fields_are_no_numbers():
    refused(
        ColumnError, "x of fields a, b", "x.dtype.names", np.zeros(70, [("a", "f4"), ("b", "f4")]), Y[:70]
    )


def test_a_single_number_is_no_data():
    refused(DataError, "x is a single number", "reshape(1, 1)", np.float32(3), np.float32(1))


def test_features_alone_are_not_enough_for_a_loss_that_compares():
    refused(DataError, "x alone, and", "fit(x, y)", X[:70])


def test_dates_are_named():
    dates = np.array(["2024-01-01"] * 70, "M8[D]")
    refused(ColumnError, "x['when'] of dtype datetime64[D]", "x['when']", {"when": dates}, Y[:70])


def test_validation_data_without_numbers_are_named_before_the_first_step():
    refused(ColumnError, "y of dtype <U6", "y", X[:70], Y[:70], validation_data=(X[:70], STRINGS))


@pytest.mark.parametrize("dtype", ["str", "category", "object"])
def test_a_column_of_a_frame_without_numbers_is_named(dtype):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:70], columns=list("abcdefgh")).assign(c=pandas.Series(STRINGS).astype(dtype))
    refused(ColumnError, "x['c'] of dtype", "x['c']", frame, Y[:70])
    refused(ColumnError, "y of dtype", "y", X[:70], frame["c"])


def test_a_column_of_a_frame_with_nullable_numbers_is_named():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:70], columns=list("abcdefgh"))
    frame["c"] = pandas.array([1] * 69 + [None], dtype="Int64")
    refused(ColumnError, "x['c'] of dtype Int64", "x['c']", frame, Y[:70])


@pytest.mark.parametrize("make", [Batches, finite], ids=["dataset", "generator"])
def test_a_column_without_numbers_in_batches_is_named_before_the_first_step(make):
    refused(
        ColumnError,
        "y of dtype <U6",
        "y",
        make(X[:70], STRINGS),
        **({"shuffle": False} if make is Batches else {}),
    )


def test_a_column_without_numbers_in_a_later_batch_is_named_with_its_batch():
    model = model_on(4)
    with pytest.raises(ColumnError, match="y of dtype <U6"):
        model.fit((b for b in [(X[:32], Y[:32]), (X[:32], STRINGS[:32])]), verbose=0)
    assert int(model.optimizer.iterations) == 1


def test_single_batches_are_checked_as_well():
    model = model_on(4)
    before = values(model)
    for call in (model.train_on_batch, model.test_on_batch):
        with pytest.raises(ColumnError) as error:
            call(X[:6], STRINGS[:6])
        assert parts(error)[1] == "y of dtype <U6"
        with pytest.raises(DataError) as error:
            call(X[:6], Y[:5])
        assert parts(error)[1] == "the batch: x has 6, y has 5"
        with pytest.raises(DataError) as error:
            call(X[:0], Y[:0])
        assert parts(error)[1] == "the batch has 0 rows"
    with pytest.raises(ColumnError):
        model.predict_on_batch(STRINGS)
    assert_untouched(model, before)


# ------------------------------------------------------------------------------------------- rows


class Empty(Batches):
    def __len__(self):
        return 0


def nothing():
    yield from ()


@pytest.mark.parametrize(
    "data, received",
    [
        ((X[:0], Y[:0]), "training data: x has 0 rows"),
        ((Empty(X, Y),), "training data has 0 batches"),
        ((nothing,), "training data"),
        ((None,), "training data: x=None"),
    ],
    ids=["arrays", "dataset", "generator", "none"],
)
def test_data_without_rows_is_refused(data, received):
    refused(DataError, received, "", *(part() if part is nothing else part for part in data))


def test_validation_data_without_rows_is_refused_before_the_first_step():
    refused(
        DataError, "validation data: x has 0 rows", "len(x)", X[:70], Y[:70], validation_data=(X[:0], Y[:0])
    )


def test_a_first_batch_without_rows_is_refused_before_the_first_step():
    rule = refused(DataError, "training data, batch 0 has 0 rows", "empty batches", finite_of((0, 8)))
    assert "at least one row" in rule


def finite_of(sizes):
    return ((X[:size], Y[:size]) for size in sizes)


def test_a_later_batch_without_rows_is_named():
    model = model_on(4)
    with pytest.raises(DataError) as error:
        model.fit(finite_of((8, 8, 0, 8)), verbose=0)
    assert parts(error)[1] == "training data, batch 2 has 0 rows"
    assert float(model.get_layer("seen").trained.value) == 16


def test_columns_of_unequal_length_are_refused_with_their_lengths():
    refused(DataError, "training data: x has 70, y has 69", "n = 69; fit(x[:n], y[:n])", X[:70], Y[:69])
    refused(
        DataError, "x has 70, y has 70, sample_weight has 3", "n = 3", X[:70], Y[:70], sample_weight=Y[:3, 0]
    )
    refused(DataError, "x['a'] has 70, x['b'] has 7", "n = 7", {"a": X[:70], "b": X[:7]}, Y[:70])
    refused(
        DataError,
        "validation data: x has 5, y has 6",
        "n = 5",
        X[:70],
        Y[:70],
        validation_data=(X[:5], Y[:6]),
    )


def test_columns_of_unequal_length_in_a_batch_are_refused_with_the_batch():
    refused(DataError, "training data, batch 0: x has 6, y has 5", "y[:n]", (b for b in [(X[:6], Y[:5])]))


def test_the_same_checks_stand_before_evaluate_and_predict():
    model = model_on(4)
    with pytest.raises(DataError) as error:
        model.evaluate(X[:70], Y[:69], verbose=0)
    assert parts(error)[1] == "evaluation data: x has 70, y has 69"
    with pytest.raises(DataError) as error:
        model.predict(X[:0], verbose=0)
    assert parts(error)[1] == "prediction data: x has 0 rows"
    with pytest.raises(DataError) as error:
        model.evaluate(None, verbose=0)
    assert parts(error)[1] == "evaluation data: x=None"


# --------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("size", [0, -1, 2.0, "32", True])
def test_a_batch_size_that_is_no_number_of_rows_is_refused(size):
    refused(ValueError, f"batch_size={size!r}", "batch_size=64", X[:70], Y[:70], batch_size=size)


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_a_number_of_steps_that_is_none_is_refused(steps):
    refused(
        ValueError,
        f"training data: steps={steps!r}",
        "steps_per_epoch=",
        X[:70],
        Y[:70],
        steps_per_epoch=steps,
    )
    held_out = {"validation_data": (X[:5], Y[:5]), "validation_steps": steps}
    refused(ValueError, f"validation data: steps={steps!r}", "validation_steps=", X[:70], Y[:70], **held_out)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -float("inf")])
def test_a_learning_rate_that_is_no_finite_number_is_refused(rate):
    model = model_on(4)
    model.optimizer.learning_rate = rate
    try:
        rule = refused(
            SettingError, f"learning_rate={rate} in Adam", "learning_rate = 1e-3", X[:70], Y[:70], model=model
        )
        with pytest.raises(SettingError) as error:
            model.train_on_batch(X[:6], Y[:6])
        assert parts(error)[0] == rule
    finally:
        model.optimizer.learning_rate = 1e-2
    model.fit(X[:70], Y[:70], verbose=0)


def test_a_loss_scale_optimizer_does_not_hide_the_learning_rate():
    def build():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(float("nan"))), "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    refused(SettingError, "learning_rate=nan", "learning_rate", X[:8], Y[:8], model=built(build, replicas(4)))


def test_a_validation_split_of_what_cannot_be_split_is_refused_before_the_first_step():
    model, began = model_on(4), Began()
    for data in (Batches(X[:70], Y[:70]), finite(X[:70], Y[:70])):
        with pytest.raises(ValueError, match="validation_split"):
            model.fit(data, validation_split=0.1, callbacks=[began], verbose=0)
    with pytest.raises(ValueError, match="validation_split=1.0"):
        model.fit(X[:2], Y[:2], validation_split=1.0, callbacks=[began], verbose=0)
    assert began.count == 0


# ---------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    "devices, received, paste",
    [
        (["cpu:0", "cpu:1", "cpu:0"], "cpu:0 twice in devices=", "devices=['cpu:0', 'cpu:1']"),
        (["cpu:0", "/device:CPU:0"], "cpu:0 twice in devices=", "devices=['cpu:0']"),
        (["tpu:0"], "JAX has no 'tpu' platform; it has ['cpu:0', ", "devices=['cpu:0', "),
        (["abacus:0"], "JAX has no 'abacus' platform", "devices=['cpu:0', "),
        (["cpu:0", "cpu"], "'cpu' in devices=['cpu:0', 'cpu']", 'devices=["cpu:0", "cpu:1"]'),
        (["cpu:-1"], "'cpu:-1'", 'devices=["cpu:0", "cpu:1"]'),
        (["cpu:0:1"], "'cpu:0:1'", 'devices=["cpu:0", "cpu:1"]'),
        ([""], "''", 'devices=["cpu:0", "cpu:1"]'),
        (["cpu:0", "gpu:0"], "devices=['cpu:0', 'gpu:0']", "devices=['cpu:0']"),
        ("cpu:0", "devices='cpu:0' of type str", "devices=['cpu:0']"),
        ([], "[]", "MirroredStrategy()"),
        ([0, 1], "devices=[0, 1] of type list", "devices=['cpu:0', 'cpu:1']"),
        (2, "devices=2 of type int", "devices=['cpu:0', 'cpu:1']"),
        ({"cpu:0": 1}, "of type dict", "devices=['cpu:0', 'cpu:1']"),
    ],
)
def test_devices_that_do_not_fit_this_machine_are_refused(devices, received, paste):
    with pytest.raises(DeviceError) as error:
        phalanx.MirroredStrategy(devices)
    _, got, line = parts(error)
    assert received in got and paste in line, error.value


@pytest.mark.parametrize("count", [9, 16])
def test_more_replicas_than_devices_name_the_command_that_makes_them(count):
    with pytest.raises(DeviceError) as error:
        phalanx.MirroredStrategy([f"cpu:{i}" for i in range(count)])
    _, received, line = parts(error)
    assert received.startswith("cpu:8") and received.endswith("JAX started with 8 CPU devices")
    assert line.startswith(f"phalanx run --replicas {count} ")


def test_one_device_is_found_or_refused_by_the_same_rules():
    with pytest.raises(DeviceError) as error:
        phalanx.OneDeviceStrategy("cpu:9")
    assert "phalanx run --replicas 10" in parts(error)[2]
    with pytest.raises(DeviceError) as error:
        phalanx.OneDeviceStrategy(0)
    assert "phalanx.OneDeviceStrategy(" in parts(error)[2]


@pytest.mark.parametrize("view", ["Global", "per_replica", None])
def test_an_unknown_view_is_refused(view):
    with pytest.raises(SettingError) as error:
        phalanx.MirroredStrategy(["cpu:0"], view=view)
    rule, received, line = parts(error)
    assert "'global', 'replica'" in rule and received == f"view={view!r}" and 'view="global"' in line


def test_a_host_column_given_as_a_string_is_refused():
    with pytest.raises(SettingError) as error:
        phalanx.MirroredStrategy(["cpu:0"], host_only="id")
    _, received, line = parts(error)
    assert received == "host_only='id'" and line == "phalanx.MirroredStrategy(host_only=['id'])"


def test_a_host_column_that_the_data_does_not_have_is_refused():
    with phalanx.MirroredStrategy(["cpu:0", "cpu:1"], host_only=["name"]).scope():
        model = with_ids()
    with pytest.raises(ColumnError, match=r"x\['id'\]"):
        model.fit({"x": X[:70], "id": STRINGS}, Y[:70], verbose=0)


# ------------------------------------------------------------------------------ data that runs out


def test_a_generator_without_a_second_epoch_ends_training_with_one_warning():
    model = model_on(4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(finite(X[:70], Y[:70]), epochs=5, verbose=0)
    (warning,) = caught
    assert warning.category is PhalanxWarning
    assert warning.filename == __file__  # it points at the user's own line
    rule, received, *paste = str(warning.message).split("\n")
    assert received == "  received: training data had no batch left for epoch 2; training ends here"
    assert "steps_per_epoch" in paste[0]
    assert len(history.history["loss"]) == 1 and history.epoch == [0]
    assert float(model.get_layer("seen").trained.value) == 70


def test_a_generator_of_validation_data_is_spent_after_the_first_epoch():
    model = model_on(4)
    with pytest.raises(DataError) as error:
        model.fit(X[:70], Y[:70], validation_data=finite(X[:13], Y[:13]), epochs=2, verbose=0)
    _, received, line = parts(error)
    assert received == "validation data had no batch left" and "PyDataset" in line
    assert int(model.optimizer.iterations) == 6  # nothing that was trained is lost


@pytest.mark.parametrize(
    "method, name", [("fit", "training"), ("evaluate", "evaluation"), ("predict", "prediction")]
)
def test_a_spent_generator_is_refused(method, name):
    spent = finite(X[:70], Y[:70])
    assert len(list(spent)) == 3
    with pytest.raises(DataError) as error:
        getattr(model_on(4), method)(spent, verbose=0)
    assert f"{name} data" in parts(error)[1]


# --------------------------------------------------------------------------------- steps that fail


def after_two_batches():
    """One device, after the first two batches of the data."""
    plain = model_on(None)
    for x, y in (batch for batch, _ in zip(finite(X, Y), range(2))):
        plain.train_on_batch(x, y)
    return values(plain)


def trains_on(model):
    """A second fit works: it changes the weights and gives finite numbers."""
    before = values(model)
    history = model.fit(X[:70], Y[:70], epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all() and len(history["loss"]) == 2
    assert any(
        not np.array_equal(value, before[name]) for name, value in values(model).items() if "kernel" in name
    )
    assert model.predict(X[:5], verbose=0).shape == (5, 1)


class Breaks(Batches):
    def __getitem__(self, index):
        if index == 2:
            raise OSError("disk gone")
        return super().__getitem__(index)


def breaks(*columns):
    for index, batch in enumerate(finite(*columns)):
        if index == 2:
            raise OSError("disk gone")
        yield batch


@pytest.mark.parametrize("make", [Breaks, breaks], ids=["dataset", "generator"])
def test_data_that_breaks_leaves_the_weights_of_the_last_good_batch(make):
    model = model_on(4)
    with pytest.raises(OSError, match="disk gone"):
        model.fit(make(X, Y), **({"shuffle": False} if make is Breaks else {}), verbose=0)
    assert_equal(values(model), after_two_batches())
    trains_on(model)


def test_data_that_breaks_in_a_worker_leaves_the_weights_of_the_last_good_batch():
    model = model_on(4)
    with pytest.raises(OSError, match="disk gone"):
        model.fit(Breaks(X, Y, workers=2), shuffle=False, verbose=0)
    assert_equal(values(model), after_two_batches())
    trains_on(model)


def test_a_callback_that_breaks_leaves_the_weights_of_the_last_good_batch():
    class Raises(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise RuntimeError("no space left for the log")

    model = model_on(4)
    with pytest.raises(RuntimeError, match="no space left"):
        model.fit(X, Y, batch_size=BATCH, shuffle=False, callbacks=[Raises()], verbose=0)
    assert_equal(values(model), after_two_batches())
    trains_on(model)


class Moody(layers.Layer):
    """Refuses remainders while its code is traced."""

    refuses = True

    def call(self, x, training=False):
        if self.refuses and x.shape[0] == 6:
            raise ArithmeticError("no six rows, please")
        return x


def test_a_layer_that_breaks_while_it_is_traced_leaves_the_weights_of_the_last_good_step():
    def build():
        model = keras.Sequential(
            [keras.Input((8,)), Moody(), layers.Dense(16, activation="relu"), layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(1e-2), "mse")
        return model

    model, plain = built(build, replicas(4)), built(build)
    plain.fit(X[:64], Y[:64], shuffle=False, verbose=0)
    with pytest.raises(ArithmeticError, match="no six rows"):
        model.fit(X[:70], Y[:70], shuffle=False, verbose=0)
    assert_equal(values(model), values(plain))
    model.layers[0].refuses = False
    trains_on(model)


def test_a_first_step_that_breaks_leaves_the_initial_weights():
    def build():
        model = keras.Sequential([keras.Input((8,)), Moody(), layers.Dense(1)])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    model = built(build, replicas(4))
    before = values(model)
    for run in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(
            (ArithmeticError, RuntimeError), match="no six rows"
        ):  # Keras wraps what breaks its build
            run(X[:6], Y[:6])
    with pytest.raises(ArithmeticError, match="no six rows"):
        model.predict(X[:6], verbose=0)
    assert_untouched(model, before)
    model.layers[0].refuses = False
    trains_on(model)


def test_validation_data_that_breaks_keeps_the_epoch_that_was_trained():
    model = model_on(4)
    with pytest.raises(OSError, match="disk gone"):
        model.fit(X[:64], Y[:64], shuffle=False, validation_data=Breaks(X, Y), verbose=0)
    plain = model_on(None)
    plain.fit(X[:64], Y[:64], shuffle=False, verbose=0)
    kernels = {name: value for name, value in values(plain).items() if "seen" not in name}
    assert_equal({name: value for name, value in values(model).items() if "seen" not in name}, kernels)
    trains_on(model)


# ------------------------------------------------------------------------- plain arguments of fit


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 2.0}, "epochs=2.0"),
        ({"epochs": "2"}, "epochs='2'"),
        ({"epochs": -1}, "epochs=-1"),
        ({"initial_epoch": 1.5}, "initial_epoch=1.5"),
        ({"validation_split": ".1"}, "validation_split='.1'"),
        ({"validation_split": 1.5}, "validation_split=1.5"),
        ({"validation_freq": 0}, "validation_freq=0"),
        ({"validation_freq": 1.5}, "validation_freq=1.5"),
        ({"validation_freq": "1"}, "validation_freq='1'"),
        ({"validation_batch_size": 0}, "validation_batch_size=0"),
        ({"class_weight": "balanced"}, "class_weight='balanced'"),
        ({"class_weight": [1, 2]}, r"class_weight=\[1, 2\]"),
        ({"callbacks": "es"}, "callbacks='es'"),
        ({"callbacks": [keras.callbacks.EarlyStopping]}, "callbacks=<class"),
        ({"shuffle": "x"}, "shuffle='x'"),
        ({"validation_data": np.ones((5, 8), "float32")}, "validation data: x alone"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_plain_arguments_are_refused_before_any_step_with_their_value(options, said):
    x, y = np.ones((8, 8), "float32"), np.ones((8, 1), "float32")
    with phalanx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=said) as caught:
        model.fit(x, y, verbose=0, **options)
    assert "received:" in str(caught.value) and "next:" in str(caught.value)
    assert int(model.optimizer.iterations) == 0


# ------------------------------------------------------------------------- what has no effect, or another one


def test_arguments_about_validation_without_validation_data_warn():
    with pytest.warns(PhalanxWarning, match=r"validation_steps=3, validation_freq=2 without validation_data"):
        model_on(2).fit(X[:70], Y[:70], validation_steps=3, validation_freq=2, verbose=0)


@pytest.mark.parametrize(
    ("rows", "received"),
    [((X[:9, :7], Y[:9]), "x (7,)"), ((X[:9], np.zeros((9, 2, 3), "float32")), "y (2, 3)")],
    ids=["features", "targets"],
)
def test_validation_arrays_of_another_shape_are_refused_before_training(rows, received):
    refused(DataError, received, "prepare(x_val, y_val)", X[:64], Y[:64], validation_data=rows)


def test_validation_arrays_that_the_model_takes_in_another_form_pass():
    model = model_on(4)
    history = model.fit(X[:64], Y[:64], validation_data=(X[:9].astype("float16"), Y[:9, 0]), verbose=0)
    assert np.isfinite(history.history["val_loss"]).all()


def test_a_model_is_not_compiled_inside_its_own_loop():
    with replicas(2).scope():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    again = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.compile("sgd", "mae"))
    with pytest.raises(ScopeError) as error:
        model.fit(X[:70], Y[:70], epochs=3, verbose=0, callbacks=[again])
    assert "compile(...) inside its own fit" in parts(error)[1]
    model.compile("sgd", "mae")
    model.fit(X[:70], Y[:70], verbose=0)


@pytest.mark.parametrize("kind", ["train", "test", "predict"])
def test_a_function_that_would_never_be_called_is_refused(kind):
    def own(self, force=False):
        raise AssertionError

    kept = type("Kept", (keras.Sequential,), {f"make_{kind}_function": own})
    with replicas(2).scope():
        model = kept([keras.Input((8,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    calls = {
        "train": lambda: model.fit(X[:70], Y[:70], verbose=0),
        "test": lambda: model.evaluate(X[:70], Y[:70], verbose=0),
        "predict": lambda: model.predict(X[:70], verbose=0),
    }
    with pytest.raises(UnsupportedError) as error:
        calls[kind]()
    assert f"Kept.make_{kind}_function is overridden" in parts(error)[1]


@pytest.mark.parametrize("names", [3, [3]])
def test_columns_of_the_host_are_named(names):
    with pytest.raises(SettingError) as error:
        phalanx.MirroredStrategy(["cpu:0"], host_only=names)
    assert f"host_only={names!r}" in parts(error)[1]


@pytest.mark.parametrize(
    ("given", "received"),
    [
        ({"steps": 2.5}, "steps=2.5"),
        ({"batch_size": "8"}, "batch_size='8'"),
        ({"seed": "a"}, "seed='a'"),
        ({"build_model": 3}, "build_model=3"),
        ({"build_model": lambda: None}, "it returned None"),
        ({"build_model": lambda: keras.Sequential([layers.Dense(1)])}, "without compile"),
    ],
)
def test_verify_refuses_what_it_cannot_compare(given, received):
    def build():
        raise AssertionError

    arguments = {"build_model": build, "x": X[:70], "y": Y[:70], "strategy": replicas(2)} | given
    with pytest.raises(SettingError) as error:
        phalanx.verify(**arguments)
    assert received in parts(error)[1]


def test_scopes_of_one_strategy_may_end_in_any_order():
    strategy = replicas(2)
    first, second = strategy.scope(), strategy.scope()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert phalanx.get_strategy() is strategy
    second.__exit__(None, None, None)
    assert not phalanx.has_strategy()


def test_predictions_of_a_batch_are_the_users_own():
    assert model_on(2).predict_on_batch(X[:7]).flags.writeable
