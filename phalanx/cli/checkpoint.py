"""`phalanx checkpoint`: backups on the disk, listed, looked into, and verified."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from phalanx.checkpoint import folder
from phalanx.checkpoint.manifest import ARRAYS
from phalanx.errors import CheckpointError, message
from phalanx.host import env, store
from phalanx.text import table

_TEACH = """\
actions:
  ls DIR         every backup in a folder: where the run stood, size, whether complete
  inspect DIR    what one holds: each array with shape and dtype (of a folder: its newest complete one)
  verify DIR     read every byte and every array of every backup, and compare them with their checksums

examples:
  phalanx checkpoint ls backups
  phalanx checkpoint inspect backups/backup-00000012
  phalanx checkpoint verify backups && phalanx run --workers 2 train.py

Only verify loads JAX, and takes no accelerator. Exit code 0 where all is well, 2 where a folder has no
complete backup, or one that is verified is damaged. An unfinished backup is what a killed save leaves: it
never counts.
"""


def describe(commands: Any, name: str) -> None:
    """Add this command and its actions to the parser.

    Args:
        commands: What `ArgumentParser.add_subparsers` returned.
        name: The word on the command line.
    """
    parser = commands.add_parser(
        name,
        help="backups: list, look into, verify",
        description="Look at backups without loading a model.",
        epilog=_TEACH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="phalanx checkpoint action DIR",
        allow_abbrev=False,
    )
    parser.set_defaults(help_of_checkpoint=parser.format_help)
    actions = parser.add_subparsers(dest="action", metavar="action")
    for action, text in (
        ("ls", "every backup in a folder"),
        ("inspect", "what a backup holds"),
        ("verify", "read every byte and array, and compare"),
    ):
        each = actions.add_parser(action, help=text, description=text.capitalize() + ".", allow_abbrev=False)
        each.add_argument("directory", metavar="DIR", help="a folder of backups, or one backup")


def act(options: argparse.Namespace) -> None:
    """Do the action, or print the help where there is none.

    Args:
        options: The parsed command line.
    """
    if options.action is None:
        print(options.help_of_checkpoint())
        return
    _ACTIONS[options.action](options.directory)


def _ls(directory: str) -> None:
    found = _rows(directory)
    print(_table(found, [row.problem or "complete" for row in found]))
    if not any(row.problem is None for row in found):
        raise folder.none_there(store.absolute(directory))


def _inspect(directory: str) -> None:
    print(folder.inspect(directory))


def _verify(directory: str) -> None:
    found = _rows(directory)
    verdicts = [row.problem or (_wrong(row.backup) if row.backup else None) for row in found]
    print(_table(found, [verdict or "whole" for verdict in verdicts]))
    damaged = [
        f"{row.name}: {verdict}"
        for row, verdict in zip(found, verdicts, strict=True)
        if verdict and not row.name.startswith(folder.TEMPORARY)
    ]
    if damaged:
        raise CheckpointError(
            message(
                "Every byte and every array of a backup is as it was written.",
                "; ".join(damaged),
                "phalanx checkpoint ls DIR   # training takes the newest whole one by itself",
            )
        )


def _wrong(backup: folder.Backup) -> str | None:
    """What is wrong with a backup, after every byte was read, and every array as a restore reads it."""
    wrong = folder.wrong_bytes(backup)
    if wrong:
        return wrong
    env.set_default("JAX_PLATFORMS", "cpu")  # no accelerator is taken from a training that runs
    arrays = importlib.import_module("phalanx.checkpoint.arrays")
    found: str | None = arrays.wrong_array(f"{backup.path}/{ARRAYS}", backup.manifest.entries)
    return found


def _rows(directory: str) -> list[folder.Row]:
    place = store.absolute(directory)
    if "manifest.json" in store.files(place):
        backup = folder.open_backup(place)
        return [folder.Row(place.rpartition("/")[2], backup, folder.wrong_sizes(backup))]
    found = folder.rows(place)
    if not found:
        raise folder.none_there(place)
    return found


def _table(found: list[folder.Row], states: list[str]) -> str:
    lines: list[tuple[str, ...]] = []
    for row, state in zip(found, states, strict=True):
        if row.backup is None:
            lines.append((row.name, "", "", "", "", "", state))
            continue
        b = row.backup
        when, size = store.local_time(b.manifest.written), folder.size_text(b.manifest.size)
        lines.append((row.name, str(b.epoch), str(b.step), str(b.updates), size, when, state))
    return table(("backup", "epochs", "steps", "updates", "size", "written", "state"), lines, align="lrrrrll")


_ACTIONS: dict[str, Callable[[str], None]] = {"ls": _ls, "inspect": _inspect, "verify": _verify}
