"""What the networks of the benchmarks are trained on: random rows of their own shapes; NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Task:
    """The rows that one network is trained on.

    Attributes:
        name: Short name, as the command line has it.
        shape: Shape of one input row.
        tokens: Inputs are token numbers below this; 0 means real numbers in [0, 1).
        classes: Labels are numbers below this.
        batch: Rows of one step over all replicas.
        steps: Steps of one epoch.
    """

    name: str
    shape: tuple[int, ...]
    tokens: int
    classes: int
    batch: int
    steps: int

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return one epoch of rows: x (steps * batch, *shape) and y (steps * batch,)."""
        rng = np.random.default_rng(0)
        count = self.steps * self.batch
        if self.tokens:
            x = rng.integers(self.tokens, size=(count, *self.shape), dtype=np.int32)
        else:
            x = rng.random((count, *self.shape), dtype=np.float32)
        return x, rng.integers(self.classes, size=count, dtype=np.int32)


TASKS = {
    task.name: task
    for task in (
        Task(name="mlp", shape=(784,), tokens=0, classes=10, batch=128, steps=100),
        Task(name="transformer", shape=(32,), tokens=1000, classes=10, batch=64, steps=20),
        Task(name="cnn", shape=(28, 28, 1), tokens=0, classes=10, batch=64, steps=20),
    )
}
