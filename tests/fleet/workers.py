"""Scripts run by several real processes that find each other through TF_CONFIG, each with a deadline.

No JAX in here: this process starts others.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
KEPT = ("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE")  # programs that an earlier test has compiled
START = """
import json, os, signal, sys, time
sys.modules["tensorflow"] = sys.modules["sklearn"] = None  # Keras loads them where they are, for nothing of ours
import numpy as np
import phalanx
import keras

def cluster(**options):
    options = {"connect_timeout": 60, "peer_timeout": 20} | options
    return phalanx.MultiWorkerMirroredStrategy(**options)

X = np.random.default_rng(0).normal(size=(70, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
"""


@dataclass
class Ended:
    """How a worker ended."""

    code: int
    out: str
    err: str
    results: list = field(default_factory=list)


def free_ports(count):
    """Ports that are free now; each test takes new ones."""
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()


def tf_config(ports, index):
    return json.dumps(
        {
            "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
            "task": {"type": "worker", "index": index},
        }
    )


class Fleet:
    """Worker processes of one script.

    Args:
        script: What they run, after the lines of `START`.
        folder: A folder of the test's own.
        count: How many.
        replicas: CPU replicas of each.
        only: Indices that are started; all by default.
        configs: TF_CONFIG of a worker, by index; loopback addresses by default.
        prefixes: What stands before a worker's command, by index: the host on which it runs.
    """

    def __init__(self, script, folder, count=2, replicas=1, only=None, configs=None, prefixes=None):
        ports = free_ports(count)
        self.ports = ports
        path = folder / "script.py"
        path.write_text(START + script)
        self.running = {}
        for index in range(count) if only is None else only:
            environ = {
                name: value
                for name, value in os.environ.items()
                if name.startswith(KEPT) or not name.startswith(("JAX_", "XLA_", "KERAS_", "TF_"))
            }
            environ |= {
                "TF_CONFIG": (configs or {}).get(index) or tf_config(ports, index),
                "JAX_PLATFORMS": "cpu",
                "KERAS_BACKEND": "jax",
                "JAX_NUM_CPU_DEVICES": str(replicas),
                "NPROC": str(max(4, 2 * replicas)),
                "PYTHONPATH": str(ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "WORKER": str(index),
            }
            self.running[index] = subprocess.Popen(
                [
                    *(prefixes or {}).get(index, ()),
                    sys.executable,
                    "-W",
                    "ignore::DeprecationWarning",
                    str(path),
                ],
                env=environ,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def line(self, index):
        """The next line that a worker's script prints; empty when it has ended."""
        lines = iter(self.running[index].stdout.readline, "")
        return next((line.strip() for line in lines if not line.startswith("[Gloo]")), "")

    def kill(self, index, signum=signal.SIGKILL):
        os.kill(self.running[index].pid, signum)

    def wait(self, seconds=150):
        """All workers, ended; a worker that does not end is the test's failure."""
        ended = {}
        for index, process in self.running.items():
            out, err = process.communicate(timeout=seconds)
            results = [json.loads(line[7:]) for line in out.splitlines() if line.startswith("result ")]
            ended[index] = Ended(process.returncode, out, err, results)
        return ended


def run(script, folder, seconds=150, **options):
    """Run a script on workers that must all end well; their results, by index."""
    with Fleet(script, folder, **options) as fleet:
        ended = fleet.wait(seconds)
    for index, each in ended.items():
        assert each.code == 0, f"worker {index} ended with {each.code}:\n{each.out}\n{each.err}"
    return {index: each.results for index, each in ended.items()}


def assert_close(found, wanted, tolerance=1e-5):
    """Same names and shapes, and no element further apart than `tolerance * max(1, |wanted|)`."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        a, b = np.asarray(value, "float64"), np.asarray(found[name], "float64")
        assert a.shape == b.shape, name
        gap = (np.abs(a - b) / np.maximum(1, np.abs(a))).max(initial=0)
        assert gap <= tolerance, f"{name} differs by {gap:.1e}"
