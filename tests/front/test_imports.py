"""Importing starts nothing."""

import os
import subprocess
import sys

import pytest

HEAVY = ("jax", "keras", "numpy", "tensorflow", "torch", "pandas", "grain", "ray")


def loaded_after(code, **environ):
    script = f"import sys\n{code}\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    clean = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"} | environ
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=clean, check=True
    )
    return done.stdout.strip().splitlines()


def test_importing_phalanx_loads_nothing_heavy_and_selects_the_jax_backend():
    lines = loaded_after("import os, phalanx\nprint(os.environ['KERAS_BACKEND'])")
    assert lines == ["jax", "[]"]


def test_importing_phalanx_leaves_a_chosen_backend_alone():
    assert loaded_after("import os, phalanx\nprint(os.environ['KERAS_BACKEND'])", KERAS_BACKEND="torch") == [
        "torch",
        "[]",
    ]


@pytest.mark.parametrize(
    "module",
    [
        "errors",
        "text",
        "world",
        "split",
        "describe",
        "restart",
        "precision",
        "host.env",
        "cluster",
        "cli.main",
    ],
)
def test_lower_floors_load_no_engine(module):
    assert loaded_after(f"import phalanx.{module}") == ["[]"]


def test_optional_libraries_are_not_imported_by_training():
    code = (
        "import phalanx, keras, numpy as np\n"
        "with phalanx.OneDeviceStrategy().scope():\n"
        "    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)"
    )
    # Keras itself imports pandas where it is installed: compare with what plain Keras loads.
    assert loaded_after(code) == loaded_after("import keras", KERAS_BACKEND="jax")
