"""The machine underneath: cores."""

from __future__ import annotations

import os


def cpu_count() -> int:
    """Cores that this process may use, 1 or more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
