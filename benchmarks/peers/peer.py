"""What every peer does alike: who it is, its turns, one JSON line for each. The standard library and NumPy.

A peer is one worker. Its place among the workers is in TF_CONFIG, as `multi_worker.py` or a person sets it;
`--driver` is where it asks for its turns. Without one it takes `--rounds` turns on end and prints them.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from tasks import TASKS, Task

_PATIENCE = 600.0  # seconds without a word from the driver: it is gone


@dataclass(frozen=True)
class Place:
    """Which worker this is, and where the first one listens."""

    worker: int
    workers: int
    address: str


def place() -> Place:
    """Read TF_CONFIG."""
    config = json.loads(os.environ["TF_CONFIG"])
    workers = config["cluster"]["worker"]
    return Place(config["task"]["index"], len(workers), workers[0])


class Peer:
    """One contender in one process.

    Args:
        packages: What the versions are asked of.
        options: Options of this peer's own, by name: their choices, the first one by default.
    """

    def __init__(self, packages: list[str], **options: list[str]) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--model", choices=["mlp", "transformer"], default="mlp")
        parser.add_argument("--name", help="what the driver calls this contender")
        parser.add_argument("--driver", metavar="HOST:PORT", help="who says when")
        parser.add_argument("--rounds", type=int, default=3, help="turns, where no driver says when")
        for name, choices in options.items():
            parser.add_argument(f"--{name}", choices=choices, default=choices[0])
        self.options = parser.parse_args()
        self.place = place()
        self.task: Task = TASKS[self.options.model]
        self._packages = packages
        self._channel: Any = None
        if self.options.driver:
            host, _, port = self.options.driver.rpartition(":")
            self._channel = socket.create_connection((host, int(port)), timeout=_PATIENCE).makefile("rw")

    def batches(self, x: np.ndarray, y: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """One epoch of this worker's rows of each global batch, in an order that all workers share."""
        order = np.random.default_rng(seed).permutation(len(x))
        own = self.task.batch // self.place.workers
        for first in range(self.place.worker * own, len(x), self.task.batch):
            rows = order[first : first + own]
            yield x[rows], y[rows]

    def run(self, train: Callable[[int], dict[str, float]]) -> None:
        """Warm up, then train whenever it is this peer's turn.

        Args:
            train: `train(epochs)` returns the last epoch's loss and accuracy when its last step has finished.
        """
        train(1)  # compiles; the first turn, which is not counted, settles layouts and caches
        x, y = self.task.rows()
        self._say(
            {
                "peer": self.options.name,
                "worker": self.place.worker,
                "rows": zlib.crc32(y.tobytes(), zlib.crc32(x.tobytes())),
                "versions": {
                    "python": platform.python_version(),
                    **{name: metadata.version(name) for name in self._packages},
                },
            }
        )
        for number, epochs in enumerate(self._turns()):
            gc.collect()
            began, busy = time.perf_counter(), time.process_time()
            logs = train(epochs)
            seconds, busy = time.perf_counter() - began, time.process_time() - busy
            if set(logs) != {"loss", "accuracy"} or not all(map(math.isfinite, logs.values())):
                raise SystemExit(f"a peer ends an epoch with a finite loss and accuracy, not with {logs}")
            steps = epochs * self.task.steps
            self._say(
                {
                    "peer": self.options.name,
                    "worker": self.place.worker,
                    "round": number,
                    "steps": steps,
                    "seconds": seconds,
                    "cpu_seconds": busy,
                    "loss": float(logs["loss"]),
                }
            )

    def _turns(self) -> Iterator[int]:
        """Epochs of each turn, until the driver hangs up."""
        if self._channel is None:
            yield from [1] * self.options.rounds
        else:
            yield from map(int, self._channel)

    def _say(self, answer: dict[str, Any]) -> None:
        line = json.dumps(answer)
        if self._channel is None:
            print(line, flush=True)
        else:
            self._channel.write(line + "\n")
            self._channel.flush()


def leave() -> None:
    """End now: some runtimes wait for minutes for a worker that left a moment before."""
    os._exit(0)
