"""A folder of backups: which are complete, which is the newest, what one holds, what goes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.checkpoint.manifest import MANIFEST, Manifest, parse
from phalanx.errors import CheckpointError, message
from phalanx.host import store
from phalanx.text import table

_NAME = re.compile(r"backup-([0-9]{8})")
TEMPORARY = "unfinished-"
_LARGEST = 256 << 20  # bytes of a manifest


@dataclass(frozen=True)
class Backup:
    """One complete backup; prints as a table.

    Args:
        path: Its folder.
        manifest: What it holds.
    """

    path: str
    manifest: Manifest

    @property
    def epoch(self) -> int:
        """Epochs that were complete."""
        return int(self.manifest.progress.get("epoch", 0))

    @property
    def step(self) -> int:
        """Steps that were done of the epoch after those."""
        return int(self.manifest.progress.get("step", 0))

    @property
    def updates(self) -> int:
        """Training steps since the run began, or the optimizer's iterations where no `fit` wrote it."""
        return int(self.manifest.progress.get("updates", 0))

    def __str__(self) -> str:
        about = self.manifest.about
        lines = [
            f"{self.path}",
            f"after {self.epoch} epochs and {self.step} steps, {self.updates} updates; "
            f"{store.local_time(self.manifest.written)}; {size_text(self.manifest.size)} on disk",
            ", ".join(f"{name} {about[name]}" for name in sorted(about)),
            "",
            table(
                ("part", "array", "shape and dtype"),
                [(each.part, each.path, each.form) for each in self.manifest.entries],
            ),
        ]
        states = [str(each[0]) for each in self.manifest.progress.get("callbacks", [])]
        return "\n".join([*lines, *(["", f"states of callbacks: {', '.join(states)}"] if states else [])])


@dataclass(frozen=True)
class Row:
    """One backup as `ls` shows it.

    Args:
        name: Its folder's name.
        backup: It, if its manifest can be read.
        problem: Why it does not count; None for a complete one.
    """

    name: str
    backup: Backup | None
    problem: str | None


def latest(directory: Any) -> str | None:
    """The newest complete backup of a folder.

    Args:
        directory: The folder that holds the backups.

    Returns:
        Its path, or None if there is none. Sizes are checked here, checksums when it is read.
    """
    return next(
        (row.backup.path for row in reversed(rows(directory)) if row.backup and not row.problem), None
    )


def inspect(directory: Any) -> Backup:
    """What a backup holds, without reading an array.

    Args:
        directory: A backup, or a folder of backups, whose newest complete one is meant.

    Raises:
        CheckpointError: There is none.
    """
    path = store.absolute(str(directory))
    if MANIFEST in store.files(path):
        return open_backup(path)
    newest = latest(path)
    if newest is None:
        raise none_there(path)
    return open_backup(newest)


def rows(directory: Any) -> list[Row]:
    """Every backup of a folder, oldest first, the unfinished ones last."""
    place = store.absolute(str(directory))
    names = store.folders(place)
    found = []
    for name in filter(_NAME.fullmatch, names):
        try:
            backup = open_backup(f"{place}/{name}")
            found.append(Row(name, backup, wrong_sizes(backup)))
        except (CheckpointError, OSError) as error:
            found.append(Row(name, None, reason(error)))
    unfinished = [name for name in names if name.startswith(TEMPORARY)]
    return found + [Row(name, None, "unfinished: it was never committed") for name in unfinished]


def open_backup(path: str) -> Backup:
    """Read a backup's manifest.

    Raises:
        CheckpointError: It is damaged.
    """
    try:
        return Backup(path, parse(store.read(f"{path}/{MANIFEST}", _LARGEST), f"{path}/{MANIFEST}"))
    except OSError as error:
        raise CheckpointError(
            message("A complete backup has a manifest.", f"{path}: {error}", "phalanx checkpoint ls DIR")
        ) from error


def wrong_sizes(backup: Backup) -> str | None:
    """What is missing, additional, a link or of another size; None if all is as the manifest says."""
    wanted, there = backup.manifest.files, store.files(backup.path)
    there.pop(MANIFEST, None)
    for path, (size, _) in wanted.items():
        if path not in there:
            return f"{path} is missing"
        if there[path] != size:
            have = "is a link" if there[path] < 0 else f"has {there[path]} bytes"
            return f"{path} {have} of {size}"
    more = sorted(there.keys() - wanted.keys())
    return f"{more[0]} is not in the manifest" if more else None


def wrong_bytes(backup: Backup) -> str | None:
    """The first file whose checksum is another one; None if all are whole. Reads every byte."""
    for path, (_, digest) in backup.manifest.files.items():
        if store.digest(f"{backup.path}/{path}") != digest:
            return f"{path} has other bytes than were written"
    return None


def problem(backup: Backup) -> str | None:
    """Why a backup cannot be used, after a look at every byte."""
    return wrong_sizes(backup) or wrong_bytes(backup)


def next_name(directory: str) -> str:
    """The name that follows those that are there, damaged ones included."""
    numbers = [int(match[1]) for match in map(_NAME.fullmatch, store.folders(directory)) if match]
    return f"backup-{max(numbers, default=0) + 1:08d}"


def to_prune(found: Sequence[Row], keep: int) -> list[str]:
    """Names that go once a newer backup is complete: all but the newest `keep` complete ones.

    Damaged backups between those that stay are left for a person to look at; older ones go, too.

    Example:
        >>> found = [Row("backup-1", None, None), Row("backup-2", None, "cut"), Row("backup-3", None, None)]
        >>> to_prune(found, 1)
        ['backup-1', 'backup-2']
    """
    complete = [row.name for row in found if row.problem is None]
    stays = complete[-keep] if len(complete) >= keep else ""
    return [row.name for row in found if row.name < stays and not row.name.startswith(TEMPORARY)]


def discard(directory: str, name: str) -> None:
    """Remove a backup; it loses its name first, so that a kill on the way leaves nothing that looks whole."""
    if not name.startswith(TEMPORARY):
        unfinished = f"{TEMPORARY}{name}"
        store.remove(f"{directory}/{unfinished}")
        store.commit(f"{directory}/{name}", f"{directory}/{unfinished}")
        name = unfinished
    store.remove(f"{directory}/{name}")


def clear(directory: str) -> None:
    """Remove every backup of a folder, the unfinished ones too, and the folder if it holds nothing else."""
    for name in store.folders(directory):
        if _NAME.fullmatch(name) or name.startswith(TEMPORARY):
            discard(directory, name)
    store.remove_if_empty(directory)


def none_there(path: str) -> CheckpointError:
    """The error for a folder without a complete backup."""
    found = rows(path)
    what = "; ".join(f"{row.name}: {row.problem}" for row in found) or "no backup in it"
    return CheckpointError(
        message("Restoring needs a complete backup.", f"{path}: {what}", f"phalanx checkpoint ls {path}")
    )


def reason(error: Exception) -> str:
    """What an error received, on one line."""
    lines = str(error).splitlines()
    received = next((line.split("received:", 1)[1].strip() for line in lines if "received:" in line), None)
    return received or (lines[0] if lines else type(error).__name__)


def size_text(size: float) -> str:
    """Bytes for people.

    Example:
        >>> size_text(999), size_text(12_500_000)
        ('999 B', '12.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""
