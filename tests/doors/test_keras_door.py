"""A Keras that is not the one this was written for is refused by name, not trained wrong."""

import os
import subprocess
import sys

import keras
import pytest
from keras.src.backend.jax.trainer import JAXTrainer

import phalanx
from phalanx.engine import keras as engine


def test_the_installed_keras_is_understood():
    engine.check()


@pytest.mark.parametrize("name", ["fit", "evaluate", "train_step", "_symbolic_build", "jax_state_sync"])
def test_a_method_with_another_signature_is_refused_by_name(monkeypatch, name):
    def changed(self, first, something_new=None):
        raise AssertionError("called")

    monkeypatch.setattr(JAXTrainer, name, changed)
    with pytest.raises(phalanx.EngineError) as refused:
        engine.check()
    text = str(refused.value)
    assert f"{name}(first, something_new)" in text
    assert isinstance(refused.value, RuntimeError)
    assert "pip install" in text.split("next:")[1]
    others = {"fit", "predict_step", "_symbolic_build"} - {name}
    assert not any(f"{other}(" in text for other in others), "only what differs is named"


def test_a_method_that_is_gone_is_refused_by_name(monkeypatch):
    monkeypatch.delattr(JAXTrainer, "compute_loss_and_updates")
    with pytest.raises(phalanx.EngineError, match=r"compute_loss_and_updates\(missing\)"):
        engine.check()


def test_a_loss_scale_optimizer_that_changed_is_refused_by_name(monkeypatch):
    optimizer = keras.optimizers.LossScaleOptimizer
    monkeypatch.setattr(optimizer, "stateless_apply", lambda self, state, grads: grads)
    with pytest.raises(phalanx.EngineError, match=r"LossScaleOptimizer\.stateless_apply\(state, grads\)"):
        engine.check()


def test_all_that_changed_is_named_at_once(monkeypatch):
    monkeypatch.setattr(JAXTrainer, "predict", lambda self, x: x)
    monkeypatch.setattr(JAXTrainer, "test_step", lambda self, data: data)
    with pytest.raises(phalanx.EngineError) as refused:
        engine.check()
    assert "predict(x)" in str(refused.value) and "test_step(data)" in str(refused.value)


def test_routing_keeps_names_and_signatures_of_keras_methods():
    phalanx.OneDeviceStrategy()  # routes, if nobody has yet
    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        method = getattr(JAXTrainer, name)
        assert method.__name__ == name
        assert method.__wrapped__.__module__.startswith("keras."), "Keras's own is behind it, once"
    for name in ("stateless_apply", "scale_loss"):
        method = getattr(keras.optimizers.LossScaleOptimizer, name)
        assert method.__name__ == name
        assert method.__wrapped__.__module__.startswith("keras.") and not hasattr(
            method.__wrapped__, "__wrapped__"
        )
    engine.check()


def run(code, **environ):
    ours = ("KERAS_BACKEND", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    clean = {k: v for k, v in os.environ.items() if k not in ours}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environ, capture_output=True, text=True, timeout=240
    )


TWICE = """
import phalanx
for _ in range(2):
    try:
        phalanx.MirroredStrategy()
    except phalanx.ScopeError as error:
        assert isinstance(error, RuntimeError)
        print(str(error))
    else:
        raise SystemExit("no error")
"""


@pytest.mark.parametrize(
    ("before", "environ"),
    [
        ("import keras\n", {"KERAS_BACKEND": "numpy"}),
        ("", {"KERAS_BACKEND": "torch"}),
    ],
    ids=["numpy already running", "torch asked for"],
)
def test_another_backend_is_refused_by_the_first_strategy_with_one_line_to_paste(before, environ):
    done = run(before + TWICE, **environ)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 6 and lines[:3] == lines[3:], "the second attempt says the same"
    assert repr(environ["KERAS_BACKEND"]) in lines[1]
    assert lines[2].split("next:")[1].strip().startswith("export KERAS_BACKEND=jax")
