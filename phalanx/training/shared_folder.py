"""Whether a folder is the same one on every worker, before a step is spent on the belief that it is."""

from __future__ import annotations

import contextlib
import json

from phalanx.engine import runtime
from phalanx.errors import CheckpointError, message
from phalanx.host import files, store
from phalanx.training import together
from phalanx.training.home import Home

_LATE = 10.0  # seconds that a network file system may be late


def check(home: Home, directory: str) -> None:
    """Make a folder of backups, and see that every worker finds there what the chief writes.

    Raises:
        CheckpointError: On all workers: it cannot be written to, or is not the same everywhere.
    """
    exchange, error = home.strategy.exchange, None
    with contextlib.ExitStack() as kept:
        said = ("", "")
        if home.strategy.is_chief:
            try:
                store.make_folder(directory)
                said = kept.enter_context(files.token(directory))
            except OSError as refused:
                error = CheckpointError(
                    message(
                        "Backups need a folder that can be written to.",
                        f"{directory}: {type(refused).__name__}: {refused}",
                        f"ls -ld {directory}",
                    )
                )
        together.all_or_none(home, "the folder of backups", error)
        if exchange is None:
            return
        name, text = json.loads(exchange.from_chief("a file in the folder of backups", json.dumps(said)))
        if not files.holds(directory, name, text, _LATE):
            error = CheckpointError(
                message(
                    "All workers share one folder of backups.",
                    f"directory not shared: worker {runtime.process()} does not see the token file {name} in "
                    f"{directory}",
                    'BackupAndRestore("/shared/backups")   # a path that is the same disk on every worker',
                )
            )
        together.all_or_none(home, "a look at the folder of backups", error)
