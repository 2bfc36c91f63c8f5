"""Before JAX starts: eight CPU devices. Around each test: nothing may be left behind."""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["KERAS_BACKEND"] = "jax"
os.environ["NPROC"] = "16"
os.environ.pop("XLA_FLAGS", None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gc
import signal
import sys
import threading
from pathlib import Path

import pytest

import phalanx

# A shell starts what runs in its background with Ctrl-C ignored, and all that starts from there inherits it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Keras imports TensorFlow where it is installed, at its first use; TensorFlow, h5py and others set these.
SET_BY_IMPORTS = (
    "PYTEST_",
    "TF",
    "TPU_ML_",
    "TPU_SKIP_",
    "HDF5_",
    "ENABLE_RUNTIME_",
    "KMP_",
    "GRPC_",
    "TORCH",
    "TRITON",
)
ROOT = Path(__file__).parent.parent


def _children():
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def _workers():
    return {t for t in threading.enumerate() if not t.daemon and t.is_alive()}


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """Fail a test that leaves variables, processes, threads, a strategy or files behind."""
    before = dict(os.environ), _children(), _workers(), set(os.listdir(ROOT))
    yield
    if _workers() - before[2]:  # a pool of threads ends when nobody holds it any more, and not at once
        gc.collect()
        for thread in _workers() - before[2]:
            thread.join(5)
    after = dict(os.environ), _children(), _workers(), set(os.listdir(ROOT))
    environ = {k for k in before[0].keys() | after[0].keys() if before[0].get(k) != after[0].get(k)}
    environ = {name for name in environ if not name.startswith(SET_BY_IMPORTS)}
    assert not environ, f"environment left changed: {sorted(environ)}"
    assert not after[1] - before[1], f"child processes left: {after[1] - before[1]}"
    assert not after[2] - before[2], f"threads left: {after[2] - before[2]}"
    left = {name for name in after[3] - before[3] if not name.startswith(".coverage")}
    assert not left, f"files left in the repository: {sorted(left)}"
    if "phalanx.strategies.current" in sys.modules:  # asking otherwise would load JAX for tests of doors
        assert not phalanx.has_strategy(), "a strategy was left in force"


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(f"{len(skipped)} skipped")
    for report in skipped:
        terminalreporter.write_line(f"skipped: {report.nodeid}: {report.longrepr[-1]}")
