"""A `fit` without backups: what the loop asks, and the plain answers."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from phalanx.engine import keras as engine
from phalanx.training.execute import Runner
from phalanx.training.together import Word


class NoBackups:
    """A `fit` without backups: every question has the plain answer."""

    over = False

    def __enter__(self) -> NoBackups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was begun."""

    def restore(self) -> None:
        """Go on from the newest backup, if there is one."""

    def first_epoch(self, wanted: int, last: int) -> int:
        """The epoch to begin with."""
        return wanted

    def within_epoch(self) -> bool:
        """True if the epoch that begins now was begun before."""
        return False

    def enter(self, runner: Runner) -> Any:
        """Begin an epoch, or go on within one.

        Returns:
            The last step's logs, if one was done.
        """
        return None

    def count(self, batches: int) -> None:
        """Batches were trained on."""

    def word(self, model: engine.Model) -> Word:
        """What this worker has to say."""
        return Word(stop=bool(model.stop_training))

    def sure(self) -> bool:
        """True if a backup is due after this step on all workers."""
        return False

    def after_step(self, epoch: int, logs: Any, runner: Runner, said: Word) -> None:
        """Do what all agreed on after a step."""

    def trained(self, epoch: int, logs: Any) -> Callable[[Runner], None] | None:
        """The epoch's steps are done and its validation begins.

        Returns:
            What to call after each step of the validation.
        """
        return None

    def epoch_ended(self, epoch: int, said: Word) -> None:
        """Do what all agreed on after an epoch."""

    def done(self) -> None:
        """Training has come to its end."""
