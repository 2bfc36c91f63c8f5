"""`phalanx`: the command and its sub-commands."""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

import phalanx
from phalanx.cli import checkpoint, cluster, manifest, run
from phalanx.errors import PhalanxError, message
from phalanx.host import procs

_TEACH = """\
examples:
  phalanx run train.py                   all accelerators, or one CPU replica
  phalanx run --replicas 2 train.py      two accelerators, or two CPU replicas
  phalanx run --help                     what is set, and why
  phalanx cluster explain                which cluster the environment describes
  phalanx manifest slurm --workers 2 train.py   the same script as a job of a scheduler
  phalanx checkpoint ls DIR              the backups in a folder, and whether they are complete
"""

_COMMANDS = {"checkpoint": checkpoint, "cluster": cluster, "manifest": manifest, "run": run}
_SPLIT = {"manifest": manifest.split, "run": run.split}  # what stands behind the script is the script's


class _Parser(argparse.ArgumentParser):
    """argparse whose errors have three parts."""

    def error(self, text: str) -> NoReturn:
        raise _UsageError(message("The command line follows `--help`.", text, f"{self.prog} --help"))


class _UsageError(PhalanxError):
    """A command line that cannot be parsed."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `phalanx` command; leaves with exit code 2 and one text where the input is bad.

    Args:
        arguments: What stands behind `phalanx`; the process's own by default.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_command(arguments)
        split = _SPLIT.get(arguments[0]) if arguments else None
        ours, rest = split(arguments[1:]) if split else (arguments[1:], [])
        options, unknown = _parser().parse_known_args([*arguments[:1], *ours])
        if unknown:
            program = " ".join(["phalanx", *filter(None, [options.command])])
            raise _UsageError(
                message(
                    f"Options are those of `{program} --help`.", f"{' '.join(unknown)}", f"{program} --help"
                )
            )
        options.rest = rest
        if options.command is None:
            _parser().print_help()
            return
        _COMMANDS[options.command].act(options)
        sys.stdout.flush()
    except PhalanxError as error:
        print(f"phalanx: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # `phalanx ... | head`: the reader has seen enough
        procs.end_now(0, "")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="phalanx",
        description="Distributed training for Keras 3 models on the JAX engine.",
        epilog=_TEACH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"phalanx {phalanx.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=_Parser)
    for name, module in _COMMANDS.items():
        module.describe(commands, name)
    return parser


def _check_command(arguments: Sequence[str]) -> None:
    first = arguments[0] if arguments else "--help"
    if first.startswith("-") or first in _COMMANDS:
        return
    near = difflib.get_close_matches(first, _COMMANDS, n=1)
    guess = near[0] if near else f"run {shlex.quote(first)}" if first.endswith(".py") else "--help"
    raise _UsageError(message(f"Commands are: {', '.join(_COMMANDS)}.", f"{first!r}", f"phalanx {guess}"))
