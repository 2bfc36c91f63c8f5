"""A model into a backup and back: the whole suitcase or nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from phalanx.checkpoint import arrays as storage
from phalanx.checkpoint import folder
from phalanx.checkpoint.differences import differences
from phalanx.checkpoint.folder import Backup
from phalanx.checkpoint.manifest import ARRAYS, MANIFEST, Entry, Manifest
from phalanx.engine import keras as engine
from phalanx.errors import CheckpointError, message, warn
from phalanx.host import machine, store
from phalanx.host.interrupts import held


def save(model: engine.Model, directory: Any) -> str:
    """Write a model's weights, optimizer slots, iterations, loss scale, seeds and metric state.

    Args:
        model: A built Keras model.
        directory: The folder of backups; made if it is not there. Each save is a new backup in it.

    Returns:
        The path of the backup, complete on the disk.

    Raises:
        CheckpointError: It cannot be written; what was there before stays as it is.
    """
    values = copies(model)
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    progress = {"updates": 0 if iterations is None else int(iterations)}
    return write(store.absolute(str(directory)), paths(model), values, progress, about(model))


def restore(model: engine.Model, directory: Any) -> str:
    """Put a backup's values into a model, on whatever replicas it has.

    Args:
        model: A built Keras model of the same layers and optimizer.
        directory: A backup, or a folder of backups, whose newest good one is taken; damaged ones are named.

    Returns:
        The path of the backup.

    Raises:
        CheckpointError: The model differs, named line by line, or no backup is whole. Nothing is loaded then.
    """
    backup = newest_good(store.absolute(str(directory)))
    engine.build_optimizer(model)
    entries = check(model, backup)
    put(model, storage.read(f"{backup.path}/{ARRAYS}", entries))
    return backup.path


def write(
    directory: str,
    paths: Mapping[str, str],
    values: Mapping[str, np.ndarray],
    progress: Mapping[str, Any],
    about: Mapping[str, Any],
) -> str:
    """Write a backup from host memory: arrays, then the manifest, then its name.

    Args:
        directory: The folder of backups.
        paths: What the model calls each array, by its key.
        values: The arrays.
        progress: Where the run stands.
        about: Who writes it.

    Raises:
        CheckpointError: The system refuses; the unfinished folder is removed.
    """
    temporary = ""
    try:
        store.make_folder(directory)
        name = folder.next_name(directory)
        temporary = f"{directory}/{folder.TEMPORARY}{name}-{machine.process_id()}"
        store.remove(temporary)
        store.make_folder(temporary)
        storage.write(f"{temporary}/{ARRAYS}", values)
        there = store.files(temporary)
        files = {path: (size, store.digest(f"{temporary}/{path}")) for path, size in sorted(there.items())}
        entries = tuple(storage.entry(key, paths[key], value) for key, value in values.items())
        manifest = Manifest(entries, files, progress, about, store.wall_clock())
        store.write(f"{temporary}/{MANIFEST}", manifest.to_json())
        store.sync(temporary)
        store.commit(temporary, f"{directory}/{name}")
    except BaseException as error:
        store.remove(temporary)
        if isinstance(error, OSError | ValueError | RuntimeError):  # Orbax gives the system's other types
            raise refused(directory, error) from error
        raise
    return f"{directory}/{name}"


def refused(directory: str, error: BaseException) -> CheckpointError:
    """The error for a backup that could not be written, with path and cause."""
    return CheckpointError(
        message(
            "A backup is written whole, or not at all; the last good one stays.",
            f"{directory}: {type(error).__name__}: {_ends(str(error))}",
            f"df -h {directory}; ls -ld {directory}",
        )
    )


def _ends(text: str, most: int = 1200) -> str:
    """The two ends of a long text: storages put the cause last, behind every path that it passed through."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def newest_good(directory: str) -> Backup:
    """The newest backup of which every byte is as it was written; damaged ones are named in a warning.

    Args:
        directory: A backup, or a folder of backups.

    Raises:
        CheckpointError: There is none.
    """
    if MANIFEST in store.files(directory):
        backup = folder.open_backup(directory)
        wrong = folder.problem(backup)
        if wrong:
            raise _damaged(directory, wrong)
        return backup
    skipped: list[str] = []
    for row in reversed([row for row in folder.rows(directory) if not row.name.startswith(folder.TEMPORARY)]):
        wrong = row.problem or (folder.wrong_bytes(row.backup) if row.backup else "no manifest")
        if wrong is None and row.backup is not None:
            if skipped:
                _say_skipped(row.name, skipped)
            return row.backup
        skipped.append(f"{row.name}: {wrong}")
    if skipped:
        raise _damaged(directory, "; ".join(skipped))
    raise folder.none_there(directory)


def check(model: engine.Model, backup: Backup) -> list[Entry]:
    """Refuse a backup of another model, before any array is read.

    Metrics that had or have not seen a batch have no variables; they start from zero at the next epoch.

    Returns:
        The arrays to read.

    Raises:
        CheckpointError: Naming each difference.
    """
    wanted = [
        Entry(key, path, tuple(variable.shape), str(engine.raw_value(variable).dtype), 0)
        for (key, path), variable in zip(paths(model).items(), _variables(model).values(), strict=True)
    ]
    then = str(backup.manifest.about.get("optimizer"))
    saved = _own(backup)
    if not (engine.metrics_built(model) and backup.manifest.about.get("metrics", "built") == "built"):
        both = {entry.key for entry in saved} & {entry.key for entry in wanted}
        saved = [entry for entry in saved if entry.part != "metrics" or entry.key in both]
        wanted = [entry for entry in wanted if entry.part != "metrics" or entry.key in both]
    found = differences(saved, wanted, then, about(model)["optimizer"])
    if found:
        more = f"; and {len(found) - 20} more" if len(found) > 20 else ""
        raise CheckpointError(
            message(
                "A backup is restored into the model that was saved: same layers, shapes and optimizer.",
                f"{backup.path}: " + "; ".join(found[:20]) + more,
                f"phalanx checkpoint inspect {backup.path}",
            )
        )
    return saved


def put(model: engine.Model, values: Mapping[str, np.ndarray]) -> None:
    """Give the model's variables their values, all or none; a loop moves them onto the replicas."""
    variables = {key: variable for key, variable in _variables(model).items() if key in values}
    placed = {key: engine.on_this_device(values[key]) for key in variables}
    with held():
        for key, variable in variables.items():
            engine.move(variable, placed[key], None)


def about(model: engine.Model) -> dict[str, Any]:
    """Who writes a backup: for people, and for named differences."""
    optimizer = getattr(model, "optimizer", None)
    return {
        "model": model.name,
        "optimizer": type(optimizer).__name__,
        "metrics": "built" if engine.metrics_built(model) else "not built",
    }


def _own(backup: Backup) -> list[Entry]:
    return [each for each in backup.manifest.entries if each.part in engine.PARTS]


def _variables(model: engine.Model) -> dict[str, Any]:
    """Every variable once, by its key in a backup."""
    parts = zip(engine.PARTS, engine.variables_of(model), strict=True)
    found, seen = {}, set()
    for part, variables in parts:
        for number, variable in enumerate(variables):
            if id(variable) not in seen:
                found[f"{part}.{number}"] = variable
                seen.add(id(variable))
    if not found:
        raise CheckpointError(
            message(
                "A backup holds the variables of a built model.",
                f"{model.name!r} has none yet",
                "model.build(...)",
            )
        )
    return found


def paths(model: engine.Model) -> dict[str, str]:
    return {key: variable.path for key, variable in _variables(model).items()}


def copies(model: engine.Model, parts: Collection[str] = engine.PARTS) -> dict[str, np.ndarray]:
    """Copies in host memory: a step that follows may use the arrays' own memory again."""
    every = ((key, engine.raw_value(variable)) for key, variable in _variables(model).items())
    values = {key: value for key, value in every if key.partition(".")[0] in parts}
    for value in values.values():
        value.copy_to_host_async()
    return {key: np.array(value) for key, value in values.items()}


def _say_skipped(taken: str, skipped: list[str]) -> None:
    warn(
        message(
            "The newest backup that is whole is taken.",
            f"{'; '.join(skipped)}; {taken} is taken instead",
            "phalanx checkpoint verify DIR",
        )
    )


def _damaged(where: str, what: str) -> CheckpointError:
    return CheckpointError(
        message(
            "Training goes on from a backup that is whole, and never quietly from zero.",
            f"{where}: {what}",
            f"phalanx checkpoint verify {where}   # or remove the folder, to start anew",
        )
    )
