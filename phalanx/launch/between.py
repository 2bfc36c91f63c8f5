"""What one run of the workers leaves for the next: compiled programs, and the sign that it got on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from phalanx.host import files, progress

_CACHE = "JAX_COMPILATION_CACHE_DIR"
_ALL_PROGRAMS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
_OFF = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Between:
    """What workers that may start again get beside their plan.

    Args:
        changes: Variables to set.
        sign: The file in which they say that a backup is complete, if there is one.
        note: What is missing, and why, if anything is.
    """

    changes: Mapping[str, str] = field(default_factory=dict)
    sign: str | None = None
    note: str | None = None

    def saved(self) -> int:
        """Backups that became complete so far."""
        return 0 if self.sign is None else progress.told(self.sign)


@contextlib.contextmanager
def between(environ: Mapping[str, str], restarts: int) -> Iterator[Between]:
    """A private folder for as long as workers are started again and again.

    JAX's cache of compiled programs lies in it, for all of them, so that a restart compiles nothing twice;
    the user's own cache is left as it is. Nobody else may look into it or write to it: a program in a cache
    is code that runs.

    Args:
        environ: The user's environment.
        restarts: How often workers may start again; at 0 there is nothing between.

    Yields:
        What the workers get.
    """
    if not restarts:
        yield Between()
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(files.private_folder("phalanx-run-"))
            files.make_empty(f"{folder}/progress")
        except OSError as error:
            yield Between(note=f"no private folder ({error}): each restart compiles anew")
            return
        yield Between(_variables(environ, folder), f"{folder}/progress")


def _variables(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """The variables, for a folder.

    Example:
        >>> sorted(_variables({"JAX_COMPILATION_CACHE_DIR": "/mine"}, "/tmp/x"))
        ['PHALANX_PROGRESS']
    """
    found = {progress.VARIABLE: f"{folder}/progress"}
    if not environ.get(_CACHE) and environ.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() not in _OFF:
        found[_CACHE] = f"{folder}/compiled"
        found |= {name: value for name, value in _ALL_PROGRAMS.items() if not environ.get(name)}
    return found
