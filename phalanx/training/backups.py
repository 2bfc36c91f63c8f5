"""The backups of one `fit`: when they are written, and how a run goes on from one."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from phalanx.checkpoint import folder
from phalanx.checkpoint import model as whole
from phalanx.checkpoint.rhythm import Rhythm
from phalanx.checkpoint.writer import Snapshot, Writer
from phalanx.engine import keras as engine
from phalanx.errors import CheckpointError, SettingError, message, warn
from phalanx.host import store
from phalanx.host.interrupts import Notice
from phalanx.host.watch import now
from phalanx.restart import PREEMPTED
from phalanx.text import many
from phalanx.training import moment, shared_folder, together
from phalanx.training.execute import Runner
from phalanx.training.moment import Fit, Moment, Phase
from phalanx.training.no_backups import NoBackups
from phalanx.training.together import Word

_SELDOM = 20  # times as long as the user's notice takes, until it is asked again
_log = logging.getLogger("phalanx")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the user wants of backups.

    Args:
        directory: The folder of backups, an absolute path.
        rhythm: When one is due.
        keep: How many complete ones stay.
        notice: The user's own sign that this machine will be taken; None where there is no such function.
        on_preemption: Save and leave when told so.
        delete_on_success: Remove all when `fit` has come to its end.
    """

    directory: str
    rhythm: Rhythm
    keep: int
    notice: Callable[[], Any] | None
    on_preemption: bool
    delete_on_success: bool


class Backups(NoBackups):
    """What `phalanx.callbacks.BackupAndRestore` asks for, done by the loop at its own fixed points.

    The chief writes; it holds all that there is. Every worker knows when, so that an error, a notice or an
    end reaches all of them at the same step.

    Args:
        fit: What runs.
        plan: What the user wants.
    """

    def __init__(self, fit: Fit, plan: Plan) -> None:
        self.fit, self.plan = fit, plan
        self.over = False  # no step of this epoch is left
        self._chief = fit.home.strategy.is_chief
        self._writer = Writer(plan.directory, plan.keep)
        self._notice = Notice() if plan.on_preemption else None
        self._failed: Exception | None = None
        self._from: Moment | None = None
        self._said = False
        self._ask_at = 0.0
        self._updates = self._saved = 0
        self._since = now()
        for feed in (fit.feed, fit.val_feed):
            if feed is not None:
                feed.followed = True

    def __enter__(self) -> Backups:
        if self._notice is not None:
            self._notice.__enter__()
        with contextlib.suppress(OSError):  # `restore` says so on all workers
            if self._chief and folder.latest(self.plan.directory) is not None:
                engine.keep_files(self.fit.callbacks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.__exit__(kind, error, trace)
        finally:
            if self._notice is not None:
                self._notice.__exit__(kind, error, trace)

    def restore(self) -> None:
        """Agree on the newest good backup and go on from it; say what will not resume exactly."""
        fit, directory = self.fit, self.plan.directory
        shared_folder.check(fit.home, directory)
        self._check_states()
        self._say_doubts()
        name = self._choose()
        if not name:
            return
        found, error = None, None
        try:
            found = moment.read(fit, folder.open_backup(f"{directory}/{name}"))
        except Exception as refused:  # a CheckpointError, or what the disk or the storage has to say
            error = refused
        together.all_or_none(fit.home, "a backup", error)
        assert found is not None
        moment.put(fit, found, say=self._chief)
        self._updates = self._saved = found.updates
        self._from = found
        if self._chief:
            steps = f" and {many(found.step, 'step')}" if found.step else ""
            _log.warning(f"training goes on from {name}, after {many(found.epoch, 'epoch')}{steps}")
        if found.phase == "between":
            self._go_on_in_data(found)
        self._since = now()

    def first_epoch(self, wanted: int, last: int) -> int:
        if self._from is None:
            return wanted
        found = self._from
        if found.phase == "between":
            self._from = None
            return last if found.stopping else found.epoch
        return found.epoch

    def within_epoch(self) -> bool:
        return self._from is not None

    def enter(self, runner: Runner) -> Any:
        found, self._from, self.over = self._from, None, False
        if found is None:
            return None
        moment.put(self.fit, found)  # again: callbacks were told that an epoch begins
        moment.put_counts(self.fit, found, runner)
        self._go_on_in_data(found)
        self.over = found.phase == "trained" or found.stopping
        return found.logs

    def count(self, batches: int) -> None:
        self._updates += batches

    def word(self, model: engine.Model) -> Word:
        try:
            self._writer.check()
        except CheckpointError as failure:
            self._failed = failure
        leave = self._told()
        return Word(
            stop=bool(model.stop_training),
            save=self._chief and self._due(epoch_ended=False),
            leave=leave,
            failed=self._trouble(),
        )

    def sure(self) -> bool:
        return self.plan.rhythm.updates is not None and self._due(epoch_ended=False)

    def after_step(self, epoch: int, logs: Any, runner: Runner, said: Word) -> None:
        def taken() -> Snapshot:
            return self._take("training", epoch, logs, runner)

        self._obey(said, taken)
        if said.save:
            self._save(taken)

    def trained(self, epoch: int, logs: Any) -> Callable[[Runner], None] | None:
        if self._notice is None:
            return None
        fit = self.fit
        # What a validation changes by itself; a callback may swap weights for the time of it.
        parts = engine.PARTS if engine.may_write_weights(fit.callbacks) else ("non_trainable", "metrics")
        before = moment.take(fit, "trained", epoch, self._updates, logs, parts=parts)
        pulse = together.Pulse(fit.home.strategy.exchange, epoch, "'s validation")

        def watch(runner: Runner) -> None:
            leave = self._told()
            said = pulse.look(Word(leave=leave, failed=self._trouble()))
            self._obey(said, lambda: moment.completed(fit, before, runner))

        return watch

    def epoch_ended(self, epoch: int, said: Word) -> None:
        def taken() -> Snapshot:
            return self._take("between", epoch + 1, None, None)

        self._obey(said, taken)
        if self._due(epoch_ended=True):
            self._save(taken)

    def done(self) -> None:
        error = self._failed
        try:
            self._writer.drain()
            if self._chief and self.plan.delete_on_success and error is None:
                folder.clear(self.plan.directory)
        except Exception as failure:
            error = failure
        together.all_or_none(self.fit.home, "the last backup", error)

    def _choose(self) -> str:
        """The chief's choice of a backup, on all workers; empty where there is none."""
        name, error = "", None
        if self._chief:
            try:
                if any(not row.name.startswith(folder.TEMPORARY) for row in folder.rows(self.plan.directory)):
                    name = store.name(whole.newest_good(self.plan.directory).path)
            except Exception as refused:
                error = refused
        together.all_or_none(self.fit.home, "a look at the backups", error)
        exchange = self.fit.home.strategy.exchange
        if exchange is None:
            return name
        return str(json.loads(exchange.from_chief("the backup to go on from", json.dumps(name))))

    def _take(self, phase: Phase, epoch: int, logs: Any, runner: Runner | None) -> Snapshot:
        return moment.take(self.fit, phase, epoch, self._updates, logs, runner)

    def _go_on_in_data(self, found: Moment) -> None:
        replayed = moment.put_data(self.fit, found)
        if replayed and self._chief:
            _log.warning(f"replaying {replayed:,} batches: this data can only be read from its start")

    def _due(self, epoch_ended: bool) -> bool:
        updates, seconds = self._updates - self._saved, now() - self._since
        return bool(self.plan.rhythm.due(updates, seconds, epoch_ended, self._writer.cost))

    def _say_interval(self) -> None:
        """Say once how often "auto" saves, as soon as it is known what a backup costs."""
        rhythm, cost = self.plan.rhythm, self._writer.cost
        if rhythm.failure_interval is not None and cost is not None and not self._said:
            self._said = True
            _log.warning(rhythm.due(1, 0.0, False, cost).reason)

    def _trouble(self) -> str:
        return "" if self._failed is None else str(self._failed) or type(self._failed).__name__

    def _told(self) -> str:
        """Why this worker has to go; empty while nobody wants it to."""
        if self._notice is None:
            return ""
        return self._notice.seen() or self._noticed()

    def _noticed(self) -> str:
        """What the user's own function says; a slow one is asked so seldom that it costs little."""
        if self.plan.notice is None or now() < self._ask_at:
            return ""
        since = now()
        try:
            own = self.plan.notice()
        except Exception as failure:  # on this worker alone: all hear of it at the next look
            self._failed = failure
            return ""
        self._ask_at = now() + _SELDOM * (now() - since)
        return str(own) if own else ""

    def _save(self, taken: Callable[[], Snapshot]) -> None:
        if self._chief:
            try:
                self._writer.wait()
                self._writer.save(taken())
            except Exception as failure:  # the last one's, or a state's: all hear of it at the next look
                self._failed = failure
            self._say_interval()
        self._saved, self._since = self._updates, now()

    def _obey(self, said: Word, taken: Callable[[], Snapshot]) -> None:
        """End the run where all agreed on it.

        Raises:
            CheckpointError: A backup could not be written.
            SystemExit: Somebody was asked to go, and all is saved.
        """
        if said.failed:
            raise self._failed or CheckpointError(said.failed)
        if not said.leave:
            return
        error = None
        try:
            if self._chief:
                self._writer.wait()
                self._writer.save(taken())
                self._writer.drain()
        except Exception as failure:
            error = failure
        together.all_or_none(self.fit.home, "the last backup", error)
        if self._chief:
            _log.warning(f"{said.leave}: {self._writer.newest} is complete, leaving with code {PREEMPTED}")
        raise SystemExit(PREEMPTED)

    def _check_states(self) -> None:
        """Refuse a callback whose state is no data, before a step is spent."""
        error = None
        try:
            moment.states_of(self.fit)
        except Exception as refused:
            error = refused
        together.all_or_none(self.fit.home, "the states of callbacks", error)

    def _say_doubts(self) -> None:
        for feed in (self.fit.feed, self.fit.val_feed):
            if self._chief and feed is not None and feed.source.doubt is not None:
                warn(
                    message(
                        "A run resumes to the bit on data that comes again as it came before.",
                        f"{feed.source.name}: {feed.source.doubt}",
                        "data.shuffle(10_000, seed=1)   # arrays, a PyDataset and grain need nothing",
                    )
                )


def of(fit: Fit) -> NoBackups:
    """The backups that a fit's callbacks ask for.

    Raises:
        SettingError: Two of them ask.
    """
    asking = engine.callbacks_with(fit.callbacks, "backup_plan")
    if not asking:
        return NoBackups()
    if len(asking) > 1:
        raise SettingError(
            message(
                "One fit has one folder of backups.",
                f"{len(asking)} BackupAndRestore among the callbacks",
                "fit(..., callbacks=[phalanx.callbacks.BackupAndRestore(folder)])",
            )
        )
    return Backups(fit, asking[0].backup_plan)
