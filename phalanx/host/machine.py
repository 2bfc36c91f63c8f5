"""The machine underneath: cores, versions, the script that runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pathlib
import sys
import time

SCRIPT = "script (SHA-256)"
PACKAGES = ("phalanx", "jax", "jaxlib", "keras", "numpy")
CARD = (*PACKAGES, "python", SCRIPT)


def cpu_count() -> int:
    """Cores that this process may use, 1 or more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def clock() -> float:
    """Seconds since 1970, as this machine believes."""
    return time.time()


def card(script: str | None = None) -> dict[str, str]:
    """What must be the same on every worker of a run: versions, and the script's text.

    Args:
        script: The script's path; the one that runs by default.
    """
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    python = ".".join(map(str, sys.version_info[:2]))
    script = script or getattr(sys.modules.get("__main__"), "__file__", None)
    found = pathlib.Path(script) if script else None
    text = found.read_bytes() if found is not None and found.is_file() else b""
    return versions | {"python": python, SCRIPT: hashlib.sha256(text).hexdigest()[:16]}


def process_id() -> int:
    """The system's number of this process."""
    return os.getpid()
