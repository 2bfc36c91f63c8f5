"""One moment of a `fit`, taken down so that another process goes on from it to the bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from phalanx.checkpoint import arrays as storage
from phalanx.checkpoint import model as whole
from phalanx.checkpoint.folder import Backup
from phalanx.checkpoint.manifest import ARRAYS, Entry
from phalanx.checkpoint.states import Packed, unpack
from phalanx.checkpoint.writer import Snapshot
from phalanx.data.feed import Feed
from phalanx.data.position import Position
from phalanx.engine import keras as engine
from phalanx.engine.arrays import to_host
from phalanx.errors import CheckpointError, message, warn
from phalanx.training.execute import Runner
from phalanx.training.home import Home, adopt
from phalanx.training.skips import Counted, Skips

_STATES = "states"  # the part of a backup's arrays that callbacks and logs hold
_SPARE = 16 << 20  # numbers in states beyond what the model's own size explains

Phase = Literal["training", "trained", "between"]
"""In the middle of an epoch; after its last step, before its validation; between two epochs."""


@dataclass(frozen=True)
class Fit:
    """What one `fit` is made of.

    Args:
        model: The Keras model, built.
        home: Its strategy and steps.
        callbacks: Keras's callback list.
        feed: The training data.
        val_feed: The validation data, if there is any.
        skips: Watches the loss scale.
    """

    model: engine.Model
    home: Home
    callbacks: Any
    feed: Feed
    val_feed: Feed | None
    skips: Skips


@dataclass(frozen=True)
class Moment:
    """Where a `fit` stood.

    Args:
        phase: Where in the epoch.
        epoch: Epochs that were complete.
        step: Batches of the next one that were trained on.
        updates: Batches since the run began.
        stopping: Somebody has stopped the training.
        random: Global random state.
        data: Position in the training data.
        validation: And in the validation data.
        skips: State of `Skips`.
        counts: What a step with a loss scale counts within an epoch.
        logs: The last step's logs.
        callbacks: `(name, state)` of each callback that has one, as `Packed` made it.
        values: The model's arrays, by key.
        arrays: Those of the states.
    """

    phase: Phase
    epoch: int
    step: int
    updates: int
    stopping: bool
    random: Any
    data: Position
    validation: Position | None
    skips: list[int]
    counts: list[int] | None
    logs: Any
    callbacks: list[tuple[str, Any]]
    values: Mapping[str, np.ndarray]
    arrays: Mapping[str, np.ndarray]


def take(
    fit: Fit,
    phase: Phase,
    epoch: int,
    updates: int,
    logs: Any = None,
    runner: Runner | None = None,
    parts: Collection[str] = engine.PARTS,
) -> Snapshot:
    """Take a moment down, in host memory of its own.

    Args:
        fit: What runs.
        phase: Where in the epoch.
        epoch: Epochs that are complete.
        updates: Batches trained on since the run began.
        logs: The last step's logs.
        runner: What carries the state, within an epoch.
        parts: The parts of the model's state that are copied.
    """
    counts = None
    if runner is not None:
        runner.finish()  # all steps looked at, the state in the model; the next step takes it again
        if isinstance(runner.step, Counted):
            counts = [int(each) for each in runner.step.counts]
    packed, states = states_of(fit)
    values, data = whole.copies(fit.model, parts), fit.feed.position()
    progress = {
        "phase": phase,
        "epoch": epoch,
        "step": 0 if phase == "between" else data.step,
        "updates": updates,
        "stopping": bool(fit.model.stop_training),
        "random": engine.random_state(),
        "data": dataclasses.asdict(data),
        "validation": fit.val_feed and dataclasses.asdict(fit.val_feed.position()),
        "skips": fit.skips.get_state(),
        "counts": counts,
        "logs": packed.pack(to_host(logs), "logs"),
        "callbacks": states,
    }
    strategy = fit.home.strategy
    about = whole.about(fit.model) | {
        "strategy": type(strategy).__name__,
        "replicas": strategy.placement.replicas,
    }
    return Snapshot(whole.paths(fit.model) | packed.paths, values | packed.arrays, progress, about)


def states_of(fit: Fit) -> tuple[Packed, list[Any]]:
    """The states of callbacks as plain values, and the arrays in them.

    Raises:
        CheckpointError: A state that is no data, named.
    """
    packed = Packed(_STATES)
    states = engine.callback_states(fit.callbacks)
    return packed, [[name, packed.pack(state, name)] for name, state in states]


def completed(fit: Fit, before: Snapshot, runner: Runner) -> Snapshot:
    """A snapshot of which the parts that a validation changes were copied before it."""
    runner.finish()
    return dataclasses.replace(before, values={**whole.copies(fit.model), **before.values})


def read(fit: Fit, backup: Backup) -> Moment:
    """Read a backup for a model that it fits; nothing is changed yet.

    Raises:
        CheckpointError: The model differs, or the backup does not hold a moment of a `fit`.
        DataError: It stands within an epoch of other batches.
    """
    engine.build_optimizer(fit.model)
    entries = whole.check(fit.model, backup)
    states = [each for each in backup.manifest.entries if each.part == _STATES]
    _check_size(fit, backup, states, entries)
    arrays = storage.read(f"{backup.path}/{ARRAYS}", [*entries, *states])
    found = backup.manifest.progress
    try:
        validation = found["validation"]
        # that all can be done is seen before anything is changed
        for _, state in found["callbacks"]:
            unpack(state, arrays)
        engine.check_random_state(found["random"])
        Skips().set_state(found["skips"])
        if found["phase"] not in get_args(Phase):
            raise ValueError(f"phase {found['phase']!r}")
        moment = Moment(
            phase=found["phase"],
            epoch=int(found["epoch"]),
            step=int(found["step"]),
            updates=int(found["updates"]),
            stopping=bool(found["stopping"]),
            random=found["random"],
            data=Position(**found["data"]),
            validation=None if validation is None else Position(**validation),
            skips=list(found["skips"]),
            counts=found["counts"],
            logs=unpack(found["logs"], arrays),
            callbacks=[(str(name), state) for name, state in found["callbacks"]],
            values={each.key: arrays[each.key] for each in entries},
            arrays={each.key: arrays[each.key] for each in states},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            message(
                "fit goes on from a backup that fit wrote.",
                f"{backup.path}: {type(error).__name__}: {error}",
                "phalanx.checkpoint.restore(model, directory)   # for one that checkpoint.save wrote",
            )
        ) from error
    fit.feed.check(moment.data)
    return moment


def put(fit: Fit, moment: Moment, say: bool = False) -> None:
    """Give the model and the callbacks what they had.

    Args:
        fit: What runs.
        moment: Where it stood.
        say: Name the callbacks that had states and are not there.
    """
    whole.put(fit.model, moment.values)
    adopt(fit.model, fit.home.strategy)
    states = [(name, unpack(state, moment.arrays)) for name, state in moment.callbacks]
    fit.skips.set_state(moment.skips)
    lost = engine.set_callback_states(fit.callbacks, states)
    if lost and say:
        warn(
            message(
                "A run goes on with the callbacks that it began with.",
                f"the backup has states of {', '.join(lost)}, and this fit has no such callback",
                "fit(..., callbacks=[...])   # the same ones, in the same order",
            )
        )
    fit.model.stop_training = moment.stopping


def put_data(fit: Fit, moment: Moment) -> int:
    """Go on in the data where the moment was, with its random numbers.

    Returns:
        Batches that had to be read again.
    """
    replayed = fit.feed.resume(moment.data)
    if fit.val_feed is not None and moment.validation is not None:
        replayed += fit.val_feed.resume(moment.validation)
    engine.set_random_state(moment.random)
    return replayed


def put_counts(fit: Fit, moment: Moment, runner: Runner) -> None:
    """Go on counting within the epoch."""
    if moment.counts is not None and isinstance(runner.step, Counted):
        counts = [np.int32(each) for each in moment.counts]
        runner.step.counts = fit.home.strategy.placement.replicate(counts)


def _check_size(fit: Fit, backup: Backup, states: list[Entry], own: list[Entry]) -> None:
    """Refuse states that no callbacks of this model can have, before memory is taken for them."""
    most = sum(each.count for each in own) * (1 + len(fit.callbacks.callbacks)) + _SPARE
    if sum(each.count for each in states) > most:
        raise CheckpointError(
            message(
                "States of callbacks are of the size of the model, at most, each.",
                f"{backup.path}: {sum(each.count for each in states):,} numbers",
                f"phalanx checkpoint inspect {backup.path}",
            )
        )
