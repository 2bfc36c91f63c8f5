"""tf.data, torch and grain give the one-device result of the same rows as arrays; none is imported unasked."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.rooms.cases import assert_equal, built, replicas
from tests.rooms.test_inputs_arrays import (
    BATCH,
    X,
    Y,
    as_arrays,
    check,
    counting,
    expected,
    model_on,
    outcome,
)
from tests.rooms.test_inputs_steps import host_ids


@pytest.fixture(scope="session")
def tf():
    return pytest.importorskip("tensorflow")


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def grain():
    yield pytest.importorskip("grain")
    gc.collect()  # grain's threads end with its iterators, a moment later
    for thread in threading.enumerate():
        if thread.name.startswith("grain"):
            thread.join(timeout=30)


def check_kind(make, rows=70, **fit):
    """A model whose steps are compiled already, and a fresh one that is built from the data's first batch."""
    check(outcome(model_on(4), make, rows, **fit), rows)


def check_fresh(make):
    model = built(counting, replicas(4))
    history = model.fit(make(X[:70], Y[:70]), epochs=2, verbose=0).history
    for name in ("loss", "mae"):
        np.testing.assert_allclose(history[name], expected(70)[f"history/{name}"], atol=1e-5)
    assert float(model.get_layer("seen").trained.value) == 140


# ---------------------------------------------------------------------------------------- tf.data


def tf_batches(tf):
    return lambda *columns: tf.data.Dataset.from_tensor_slices(columns).batch(BATCH)


def test_tf_data_with_a_remainder_equals_one_device(tf):
    check_kind(tf_batches(tf))
    check_fresh(tf_batches(tf))


def test_tf_data_of_unknown_length_equals_one_device(tf):
    def make(*columns):
        data = tf_batches(tf)(*columns).filter(lambda *batch: True)
        assert int(data.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        return data

    check_kind(make)
    check_fresh(make)


def test_tf_data_that_repeats_with_steps_equals_one_device(tf):
    make = tf_batches(tf)
    model = model_on(4)
    history = model.fit(
        make(X[:70], Y[:70]).repeat(),
        steps_per_epoch=3,
        epochs=2,
        validation_data=make(X[:13], Y[:13]).repeat(),
        validation_steps=1,
        verbose=0,
    ).history
    assert_equal(
        {f"history/{name}": values for name, values in history.items()},
        {name: value for name, value in expected(70).items() if name.startswith("history/")},
    )
    got = model.evaluate(make(X[:70], Y[:70]).repeat(), steps=3, verbose=0)
    np.testing.assert_allclose(got[0], expected(70)["evaluate/loss"], atol=1e-5)
    got = model.predict(make(X[:70]).repeat(), steps=3, verbose=0)
    np.testing.assert_allclose(got, expected(70)["predict"], atol=1e-5)


def test_tf_data_that_is_prefetched_and_cached_keeps_its_rows(tf):
    check_kind(lambda *columns: tf_batches(tf)(*columns).cache().prefetch(tf.data.AUTOTUNE))


def test_tensors_of_tensorflow_are_arrays(tf):
    model = model_on(4)
    history = model.fit(tf.constant(X[:70]), tf.constant(Y[:70]), epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected(70)["history/loss"], atol=1e-5)


def test_strings_of_tf_data_stay_on_the_host_and_keep_their_rows(tf):
    """Reports row 25: ids beside features, aligned with what predict gives."""
    ids = np.array([f"row {i}" for i in range(70)])
    rows = tf.data.Dataset.from_tensor_slices({"x": X[:70], "id": ids}).batch(BATCH)
    assert host_ids(rows) == [f"row {i}".encode() for i in range(70)]


# ------------------------------------------------------------------------------------------ torch


def torch_batches(torch, **settings):
    def make(*columns):
        rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, columns))
        return torch.utils.data.DataLoader(rows, batch_size=BATCH, **settings)

    return make


def test_torch_loaders_with_a_remainder_equal_one_device(torch):
    check_kind(torch_batches(torch))
    check_fresh(torch_batches(torch))


def test_torch_loaders_that_drop_the_remainder_equal_one_device_without_it(torch):
    model = model_on(4)
    history = model.fit(torch_batches(torch, drop_last=True)(X[:70], Y[:70]), epochs=2, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected(64)["history/loss"], atol=1e-5)


def test_torch_loaders_of_unknown_length_equal_one_device(torch):
    class Rows(torch.utils.data.IterableDataset):
        def __init__(self, *columns):
            self.columns = columns

        def __iter__(self):
            return zip(*self.columns)

    check_kind(lambda *columns: torch.utils.data.DataLoader(Rows(*columns), batch_size=BATCH))


def test_tensors_of_torch_are_arrays(torch):
    model = model_on(4)
    x, y = map(torch.from_numpy, (X[:70], Y[:70]))
    history = model.fit(x, y, validation_split=0, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected(70)["history/loss"], atol=1e-5)


# ------------------------------------------------------------------------------------------ grain


def grain_map(grain):
    class Rows:
        def __init__(self, *columns):
            self.columns = columns

        def __len__(self):
            return len(self.columns[0])

        def __getitem__(self, index):
            return tuple(column[index] for column in self.columns)

    return lambda *columns: grain.MapDataset.source(Rows(*columns))


def test_grain_map_datasets_equal_one_device(grain):
    make = lambda *columns: grain_map(grain)(*columns).batch(BATCH)  # noqa: E731
    check_kind(make)
    check_fresh(make)


def test_grain_iter_datasets_equal_one_device(grain):
    check_kind(lambda *columns: grain_map(grain)(*columns).to_iter_dataset().batch(BATCH))


def test_grain_loaders_equal_one_device(grain):
    def make(*columns):
        source = grain_map(grain)(*columns)
        sampler = grain.samplers.IndexSampler(len(source), shuffle=False, num_epochs=1)
        return grain.DataLoader(
            data_source=source, sampler=sampler, operations=[grain.transforms.Batch(BATCH)]
        )

    check_kind(make)


# ----------------------------------------------------------------------------------- none of them

UNASKED = """
import sys

class Watch:
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name in ("tensorflow", "torch", "grain", "pandas", "scipy"):
            self.asked.append(name)

watch = Watch()
sys.meta_path.insert(0, watch)
import keras, numpy as np
by_keras = set(sys.modules)
watch.asked.clear()  # Keras itself looks for pandas
import phalanx

class Batches(keras.utils.PyDataset):
    num_batches = 2

    def __getitem__(self, index):
        return x[:3], y[:3]

x, y = np.ones((6, 4), "float32"), np.ones((6, 1), "float32")
with phalanx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
model.fit(x, y, validation_data=Batches(), verbose=0)
model.fit(batch for batch in [(x, y)] * 2)
model.evaluate(x, y, verbose=0), model.predict(x, verbose=0), model.train_on_batch(x, y)
loaded = sorted({"tensorflow", "torch", "grain", "pandas"} & (set(sys.modules) - by_keras))
print("asked for", watch.asked, "and loaded", loaded)
"""


VERIFY = """
def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

assert phalanx.verify(build, x, y, phalanx.OneDeviceStrategy(), steps=1).equal()
"""


def last_line(script):
    """What a script in a process of its own prints last."""
    environ = {
        k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"
    }  # JAX looks for them there
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environ
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


def test_optional_libraries_are_not_even_looked_for_unless_the_data_is_theirs():
    assert last_line(UNASKED) == "asked for [] and loaded []"


def test_verify_does_not_look_for_them_either():
    script = UNASKED[: UNASKED.index("model.fit(x")] + VERIFY + UNASKED[UNASKED.index("loaded = ") :]
    assert last_line(script) == "asked for [] and loaded []"


def test_the_kinds_of_this_file_are_told_apart():
    """The oracle itself: another order of rows gives other numbers, so the tests above can fail."""
    got = outcome(model_on(None), as_arrays, 70, shuffle=False, batch_size=BATCH)
    other = model_on(None).fit(X[:70][::-1], Y[:70][::-1], epochs=2, shuffle=False, verbose=0).history["loss"]
    assert not np.allclose(other, got["history/loss"], atol=1e-4)
