"""Backups written beside the training: one at a time, each whole before an older one goes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from phalanx.checkpoint import folder, model
from phalanx.errors import CheckpointError, SettingError, message
from phalanx.host import progress, store
from phalanx.host.watch import now

PATIENCE = 600.0
"""Seconds that the end of a run waits for its last backup."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What one backup will hold, in host memory that nobody else writes to.

    Args:
        paths: What the model calls each array, by its key.
        values: The arrays.
        progress: Where the run stands: plain values.
        about: Who writes it.
    """

    paths: Mapping[str, str]
    values: Mapping[str, np.ndarray]
    progress: Mapping[str, Any]
    about: Mapping[str, Any]


class Writer:
    """Writes snapshots into a folder while the training goes on; one process has one.

    Between two saves the folder holds at most `keep` complete backups, during a save one more: the older goes
    after the newer is complete. What a killed run left unfinished goes before the first save, so that it
    cannot fill the disk. As a context manager it waits for the last backup.

    Args:
        directory: The folder of backups; made if it is not there.
        keep: How many complete backups stay.

    Attributes:
        cost: Seconds that the last backup took to write, None before the first.
        blocked: Seconds that the last `save` held its caller, and a `wait` before it.
        newest: Path of the last backup that is complete, None before the first.

    Raises:
        SettingError: `keep` is no whole number of 1 or more.
    """

    def __init__(self, directory: str, keep: int) -> None:
        if type(keep) is not int or keep < 1:
            raise SettingError(
                message("At least one backup stays.", f"keep={keep!r}", "BackupAndRestore(folder, keep=2)")
            )
        self.directory = store.absolute(directory)
        self.cost: float | None = None
        self.blocked = 0.0
        self.newest: str | None = None
        self._waited = 0.0
        self._keep = keep
        self._swept = False
        self._thread: threading.Thread | None = None
        self._failure: CheckpointError | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Wait for the last backup to be complete, then begin to write this one and return.

        Args:
            snapshot: What to write; it is the writer's from now on.

        Raises:
            CheckpointError: The last backup could not be written.
        """
        since = now()
        self._join(None)
        self.check()
        # A daemon: a disk that never answers must not keep the process from its end.
        self._thread = threading.Thread(
            target=self._write, args=(snapshot,), name="phalanx-backup", daemon=True
        )
        self._thread.start()
        self.blocked, self._waited = self._waited + now() - since, 0.0

    def wait(self) -> None:
        """Wait for the last backup; before a snapshot is taken, so that memory never holds two of them."""
        since = now()
        self._join(None)
        self._waited = now() - since

    def check(self) -> None:
        """Raise what went wrong with a backup, once; the ones before it stay.

        Raises:
            CheckpointError: With the path and the cause.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def drain(self, seconds: float = PATIENCE) -> None:
        """Wait until the last backup is complete.

        Args:
            seconds: How long to wait.

        Raises:
            CheckpointError: It could not be written, or not in this time.
        """
        if not self._join(seconds):
            raise CheckpointError(
                message(
                    "A run ends when its last backup is complete.",
                    f"{self.directory}: still being written after {seconds:g} s; the last good one stays",
                    f"phalanx checkpoint ls {self.directory}",
                )
            )
        self.check()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.drain()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def _join(self, seconds: float | None) -> bool:
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _write(self, snapshot: Snapshot) -> None:
        since = now()
        try:
            self._sweep()
            self.newest = model.write(
                self.directory, snapshot.paths, snapshot.values, snapshot.progress, snapshot.about
            )
            progress.tell()
            for name in folder.to_prune(folder.rows(self.directory), self._keep):
                folder.discard(self.directory, name)
        except CheckpointError as failure:
            self._failure = failure
        except BaseException as error:  # nobody sees what is raised in a thread
            self._failure = model.refused(self.directory, error)
            self._failure.__cause__ = error
        self.cost = now() - since

    def _sweep(self) -> None:
        """Remove what earlier runs left unfinished: a folder of backups has one writer."""
        if not self._swept:
            for name in store.folders(self.directory):
                if name.startswith(folder.TEMPORARY):
                    folder.discard(self.directory, name)
            self._swept = True
