"""Processes: becoming another program, and naming the one that runs."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

_FLAGS = "bBdEiIOPqsSuv"  # letters that may stand together behind one dash


def become_python(arguments: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the same Python on other arguments; exit code and signals are then its own.

    Options that this Python was started with (`-u`, `-X dev`) stay. No shell sees the arguments.

    Args:
        arguments: What stands behind `python`.
        environ: The whole environment of the new program.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    options = options_of_python(sys.orig_argv)
    os.execve(sys.executable, [sys.executable, *options, *arguments], dict(environ))


def options_of_python(command: Sequence[str]) -> list[str]:
    """The options of Python itself in a command line.

    Args:
        command: The whole command line, as `sys.orig_argv` has it.

    Returns:
        What stands between `python` and the program.

    Example:
        >>> options_of_python(["python", "-X", "dev", "-um", "phalanx", "run", "-u"])
        ['-X', 'dev', '-u']
        >>> options_of_python(["python", "/bin/phalanx", "run", "a.py"])
        []
    """
    options = []
    words = iter(command[1:])
    for word in words:
        if word in ("-W", "-X"):
            options += [word, next(words, "")]
        elif re.fullmatch(rf"-[{_FLAGS}]+|-[WX].+", word):
            options.append(word)
        else:
            if re.fullmatch(rf"-[{_FLAGS}]+m", word):
                options.append(word[:-1])
            break
    return options


def current_script() -> str | None:
    """What this process runs, as it would be pasted behind `phalanx run`: the script and its arguments.

    Returns:
        `"train.py --epochs 3"`, `"-m package.train"`, or None under `python -c`, a notebook or a prompt.
    """
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) is None or sys.argv[:1] in ([], [""], ["-"]):
        return None
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name == "__main__":
        return shlex.join(sys.argv)
    return shlex.join(["-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]])


def write_error(text: str) -> None:
    """Write a line to standard error at once, from any thread, whatever became of `sys.stderr`."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))


def end_now(code: int, text: str) -> NoReturn:
    """Write why, and end the process at once: no exit handlers, which may wait for those that are gone.

    Args:
        code: The exit code.
        text: The reason, for standard error; empty for none.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if text:
        write_error(text)
    os._exit(code)
