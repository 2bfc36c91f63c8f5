"""Processes: becoming another program, and naming the one that runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn


def become_python(arguments: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the same Python on other arguments; exit code and signals are then its own.

    Args:
        arguments: What stands behind `python`, untouched by any shell.
        environ: The whole environment of the new program.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *arguments], dict(environ))


def current_script() -> str | None:
    """The script that this process runs, as it was named, or None under `-c`, `-m` or a prompt.

    Returns:
        A path to paste behind `phalanx run`.
    """
    script = sys.argv[0] if sys.argv else ""
    return script if script.endswith(".py") and not script.endswith("__main__.py") else None
