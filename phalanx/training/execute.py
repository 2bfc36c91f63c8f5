"""One execution: a group of placed batches through a compiled step, state carried along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.data.feed import Group
from phalanx.engine import keras as engine
from phalanx.engine.arrays import Placed
from phalanx.host.interrupts import held
from phalanx.training import home as homes
from phalanx.training import noise
from phalanx.training.skips import Counted
from phalanx.training.window import Window

TRAIN = ("trainable", "non_trainable", "optimizer", "metrics")
TEST = ("trainable", "non_trainable", "metrics")
PREDICT = ("trainable", "non_trainable")


class Runner:
    """Carries a model's state through steps of one kind.

    Args:
        model: The Keras model, built.
        home: Its strategy and steps.
        kind: `"train"`, `"test"`, `"predict"` or `"predict own"`; see `home.compiled`.
        parts: The parts of the state that the steps carry.
        finished: Called with the logs of each finished step that a loss scale may skip, in order.
    """

    def __init__(
        self,
        model: engine.Model,
        home: homes.Home,
        kind: str,
        parts: tuple[str, ...],
        finished: Callable[[Any], None] | None = None,
    ) -> None:
        self.model, self.home, self.parts = model, home, parts
        self.step = homes.running(model, home, kind, parts)
        self.window = Window(home.strategy.in_flight, finished if isinstance(self.step, Counted) else None)
        self.state: Any = None

    def run(self, group: Group) -> list[Any]:
        """Dispatch the steps of a group.

        Returns:
            What each step returned: logs, or outputs.
        """
        return [self._one(batch) for batch in group.batches]

    def _one(self, batch: Placed) -> Any:
        with held():  # the step takes the state's memory; until the new one is lent, it is nowhere else
            self._take()
            results, self.state = self.step(self.state, batch.arrays, batch.cut)
            engine.lend(self.model, self.parts, self.state)
        self.window.push(results, self.state)
        return results

    def measure_noise(self, batch: Placed) -> noise.Look | None:
        """Dispatch a look at the gradients that the coming step will have; see `training.noise`."""
        self._take()
        look = noise.measure(self.model, self.home, self.state, batch)
        if look is not None:
            self.window.push(look.squared, None)
        return look

    def _take(self) -> None:
        if self.state is None or engine.is_home(self.model):  # a callback may have asked for the state
            self.state = engine.take(self.model, self.parts)

    def finish(self) -> None:
        """Wait for all steps and put the state back into the model."""
        self.window.drain()
        engine.give_back(self.model)
        self.state = None
