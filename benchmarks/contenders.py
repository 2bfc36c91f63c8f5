"""Three ways to train the same Keras model on the same devices, and a fair way to time them.

All three train on equal rows in shuffled batches, with metrics, and read their loss and accuracy once an
epoch. `compare` lets them take turns in one process, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import phalanx  # before keras: it chooses the JAX backend

# isort: split
import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from models import Case
from results import HAND, KERAS, PHALANX, WITH_BAR, Timing

IN_FLIGHT = 1  # unfinished steps while the next batch is cut: more can stop CPU replicas for good


@dataclass(frozen=True)
class Contender:
    """One way to train: `train(epochs)` returns when the last step has finished."""

    name: str
    train: Callable[[int], None]


class Sink(io.TextIOBase):
    """A terminal that nobody reads: takes the progress bar's text and keeps none of it."""

    def isatty(self) -> bool:
        """Say yes, so that the bar is drawn as it would be for a person."""
        return True

    def write(self, text: str) -> int:
        """Take the text."""
        return len(text)


def hand_written(case: Case, devices: Sequence[str], in_flight: int = IN_FLIGHT) -> Contender:
    """The loop that an expert writes: one donated, compiled step over a mesh, and nothing around it.

    No callbacks, no input pipeline, no progress bar; the only wait inside an epoch is the one that keeps
    CPU replicas alive (`in_flight`).
    """
    x, y = case.rows()
    model = case.compiled()
    model.test_on_batch(x[: case.batch], y[: case.batch])  # makes the metrics' variables
    model.reset_metrics()
    model.optimizer.build(model.trainable_variables)

    mesh = Mesh(np.array([_device(name) for name in devices]), ("batch",))
    by_rows, whole = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    held = [jax.device_put([np.asarray(v) for v in variables], whole) for variables in lists]
    zeros = [np.asarray(v) for v in model.metrics_variables]
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, whole))
    rng = np.random.default_rng(1)

    def train(epochs: int) -> None:
        for _ in range(epochs):
            state = (*held, jax.device_put(zeros, whole))
            order = rng.permutation(len(x))
            pending: deque[jax.Array] = deque()
            logs: dict[str, jax.Array] = {}
            for first in range(0, len(x), case.batch):
                rows = order[first : first + case.batch]
                logs, state = step(state, jax.device_put((x[rows], y[rows]), by_rows))
                pending.append(logs["loss"])
                if len(pending) > in_flight:
                    pending.popleft().block_until_ready()
            jax.block_until_ready(state)
            held[:] = state[:3]
            _check({name: float(value) for name, value in logs.items()}, held[0], devices)

    return Contender(HAND, train)


def keras_fit(case: Case, devices: Sequence[str]) -> tuple[Contender, Contender]:
    """Keras's own `fit` under `keras.distribution.DataParallel`; without and with progress bar."""
    return _fit(KERAS, case, keras.distribution.DataParallel(devices=list(devices)), inside=True)


def phalanx_fit(case: Case, devices: Sequence[str]) -> tuple[Contender, Contender]:
    """`fit` under `phalanx.MirroredStrategy`; without and with progress bar."""
    return _fit(PHALANX, case, phalanx.MirroredStrategy(devices=list(devices)), inside=False)


def _fit(name: str, case: Case, strategy: Any, inside: bool) -> tuple[Contender, Contender]:
    """Build in the scope and train through `fit`, in the scope or (as Phalanx allows) outside."""
    x, y = case.rows()
    with strategy.scope():
        model = case.compiled()
    devices = strategy.device_mesh.devices.flatten()

    def train(epochs: int, verbose: int) -> None:
        with strategy.scope() if inside else contextlib.nullcontext():
            history = model.fit(x, y, batch_size=case.batch, epochs=epochs, verbose=verbose)
        last = {key: values[-1] for key, values in history.history.items()}
        _check(last, [v.value for v in model.trainable_variables], devices)

    def with_bar(epochs: int) -> None:
        with contextlib.redirect_stdout(Sink()):
            train(epochs, verbose=1)

    return Contender(name, lambda epochs: train(epochs, verbose=0)), Contender(name + WITH_BAR, with_bar)


def _device(name: str) -> jax.Device:
    """Find a JAX device by its Keras name."""
    platform, number = name.split(":")
    return next(device for device in jax.devices(platform) if device.id == int(number))


def _check(logs: dict[str, float], variables: Sequence[jax.Array], devices: Sequence[str]) -> None:
    """Make sure that a contender did the work: it learnt something finite, on every device."""
    used = len(variables[0].sharding.device_set)
    assert used == len(devices), f"trained on {used} devices instead of {len(devices)}"
    assert set(logs) == {"loss", "accuracy"}, logs
    assert np.isfinite(list(logs.values())).all(), logs


def compare(case: Case, devices: Sequence[str], rounds: int = 15, seconds: float = 0.7) -> Timing:
    """Time all contenders on one network, taking turns.

    Args:
        case: The network.
        devices: Keras device names, one replica each.
        rounds: Turns of each contender; the order rotates from round to round.
        seconds: About how long one turn takes; it is a whole number of epochs.

    Returns:
        Milliseconds per step of each contender and round. Compiling is not in them.
    """
    contenders = [hand_written(case, devices), *phalanx_fit(case, devices), *keras_fit(case, devices)]
    for contender in contenders:
        contender.train(2)  # compiles, and settles layouts and caches
    epochs = max(1, round(seconds / min(_clock(contender, 1) for contender in contenders)))
    taken: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    before, own, began = _busy_cpu_seconds(), time.process_time(), time.perf_counter()
    for number in range(rounds):
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            taken[contender.name].append(_clock(contender, epochs) * 1e3 / (epochs * case.steps))
    others = None
    if before is not None and (after := _busy_cpu_seconds()) is not None:
        wall = (time.perf_counter() - began) * (os.cpu_count() or 1)
        others = max(0.0, (after - before) - (time.process_time() - own)) / wall
    return Timing(case.name, case.batch, case.steps * epochs, taken, others)


def _clock(contender: Contender, epochs: int) -> float:
    """Seconds of one turn, with the garbage of earlier turns out of the way."""
    gc.collect()
    began = time.perf_counter()
    contender.train(epochs)
    return time.perf_counter() - began


def _busy_cpu_seconds() -> float | None:
    """CPU seconds that all processes of the machine have used since it started, where Linux tells."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
