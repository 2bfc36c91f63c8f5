"""Files saved under a strategy are Keras's own: same bits, no trace of Phalanx, readable without it."""

import json
import os
import subprocess
import sys
import zipfile

import jax
import keras
import numpy as np
import pytest

import phalanx

X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,), name="rows"),
            keras.layers.Dense(8, activation="relu", name="d1"),
            keras.layers.BatchNormalization(name="bn"),
            keras.layers.Dropout(0.2, name="drop"),
            keras.layers.Dense(1, name="d2"),
        ],
        name="m",
    )
    model.compile(keras.optimizers.Adam(0.01, name="adam"), "mse", metrics=["mae"])
    return model


def mirrored(replicas=2):
    assert len(jax.devices()) >= 8, "these tests need eight CPU devices"
    return phalanx.MirroredStrategy(devices=[f"cpu:{i}" for i in range(replicas)])


def state(model):
    """All variables that Keras saves; it leaves the state of seeds out."""
    variables = [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]
    return [v for v in variables if v.name != "seed_generator_state"]


def values(model):
    return [np.array(v.value) for v in state(model)]


def assert_same_bits(values, others):
    assert len(values) == len(others)
    for one, other in zip(values, others):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def trained():
    with mirrored().scope():
        model = build()
    model.fit(X, Y, batch_size=16, verbose=0)
    return model


@pytest.fixture(scope="module")
def twin(trained):
    """A plain Keras model with the same values in every variable."""
    model = build()
    model.optimizer.build(model.trainable_variables)
    for variable, value in zip(state(model), values(trained), strict=True):
        variable.assign(value)
    return model


def test_a_whole_model_comes_back_to_the_bit_with_optimizer_and_predictions(trained, tmp_path):
    trained.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert_same_bits(values(loaded), values(trained))
    np.testing.assert_allclose(
        loaded.predict(X, batch_size=16, verbose=0), trained.predict(X, batch_size=16, verbose=0), atol=1e-6
    )


def test_a_saved_model_evaluates_as_the_live_one(trained, tmp_path):
    trained.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    live = trained.evaluate(X, Y, batch_size=16, verbose=0)
    np.testing.assert_allclose(loaded.evaluate(X, Y, batch_size=16, verbose=0), live, rtol=0, atol=1e-6)


def parts(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_file_of_a_model_is_that_of_plain_keras_and_names_phalanx_nowhere(trained, twin, tmp_path):
    trained.save(tmp_path / "ours.keras")
    twin.save(tmp_path / "plain.keras")
    ours, plain = parts(tmp_path / "ours.keras"), parts(tmp_path / "plain.keras")
    assert list(ours) == list(plain) == ["metadata.json", "config.json", "model.weights.h5"]
    assert json.loads(ours["config.json"]) == json.loads(plain["config.json"])
    assert json.loads(ours["metadata.json"]).keys() == json.loads(plain["metadata.json"]).keys()
    for name, content in ours.items():
        assert b"phalanx" not in content.lower(), name


def test_weights_written_under_the_strategy_and_by_plain_keras_are_the_same_bits(trained, twin, tmp_path):
    trained.save_weights(tmp_path / "ours.weights.h5")
    twin.save_weights(tmp_path / "plain.weights.h5")
    one, other = build(), build()
    for model in (one, other):
        model.optimizer.build(model.trainable_variables)
    one.load_weights(tmp_path / "ours.weights.h5")
    other.load_weights(tmp_path / "plain.weights.h5")
    assert_same_bits(values(one), values(other))
    assert_same_bits(values(one), values(trained))


def test_weights_of_plain_keras_loaded_into_a_model_with_a_strategy_lie_on_every_replica(twin, tmp_path):
    twin.save_weights(tmp_path / "plain.weights.h5")
    with mirrored(4).scope():
        model = build()
        model.optimizer.build(model.trainable_variables)
    model.load_weights(tmp_path / "plain.weights.h5")
    assert_same_bits(values(model), values(twin))
    model.fit(X, Y, batch_size=16, verbose=0)
    for variable in state(model):
        copies = [np.asarray(shard.data) for shard in variable.value.addressable_shards]
        assert len(copies) == 4
        assert_same_bits(copies, copies[:1] * 4)


PLAIN_READER = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "phalanx":
            raise ImportError("phalanx is not installed here")
sys.meta_path.insert(0, Refuse())
import keras, numpy as np
model = keras.models.load_model("m.keras")
x, y = np.load("x.npy"), np.load("y.npy")
np.savez("read.npz", *model.get_weights(), predicted=model.predict(x, verbose=0))
model.fit(x, y, verbose=0)
import jax
print(len(jax.devices()), "phalanx" in sys.modules)
"""


def test_a_process_without_phalanx_reads_the_model_and_trains_on(trained, tmp_path):
    trained.save(tmp_path / "m.keras")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    environ = {k: v for k, v in os.environ.items() if k not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_READER],
        cwd=tmp_path,
        env=environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["1", "False"]
    with np.load(tmp_path / "read.npz") as read:
        weights = [read[f"arr_{i}"] for i in range(len(trained.get_weights()))]
        assert_same_bits(weights, [np.array(w) for w in trained.get_weights()])
        np.testing.assert_allclose(
            read["predicted"], trained.predict(X, batch_size=16, verbose=0), rtol=0, atol=1e-5
        )


def test_a_model_with_its_own_class_saves_and_loads_in_the_scope(tmp_path):
    @keras.saving.register_keras_serializable("tests")
    class Own(keras.Model):
        def __init__(self, width=4, **kwargs):
            super().__init__(**kwargs)
            self.width, self.inner, self.out = width, keras.layers.Dense(width), keras.layers.Dense(1)

        def call(self, x):
            return self.out(self.inner(x))

        def get_config(self):
            return super().get_config() | {"width": self.width}

    strategy = mirrored()
    with strategy.scope():
        model = Own(3)
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=16, verbose=0)
    model.save(tmp_path / "own.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "own.keras")
    assert_same_bits(values(loaded), values(model))
    loaded.fit(X, Y, batch_size=16, verbose=0)
    assert {len(v.value.sharding.device_set) for v in loaded.trainable_variables} == {2}


def test_an_exported_model_serves_the_same_predictions(trained, tmp_path):
    tensorflow = pytest.importorskip("tensorflow", reason="Keras exports a JAX model through TensorFlow")
    trained.export(str(tmp_path / "served"), verbose=False)
    served = tensorflow.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(
        served.serve(X).numpy(), trained.predict(X, batch_size=16, verbose=0), rtol=0, atol=1e-5
    )
