"""Backups of a model: saved whole, restored whole, on any number of replicas."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phalanx.checkpoint.folder import Backup, inspect, latest

if TYPE_CHECKING:
    from phalanx.checkpoint.model import restore, save

__all__ = ["Backup", "inspect", "latest", "restore", "save"]


def __getattr__(name: str) -> Any:
    if name in ("save", "restore"):  # these load JAX and Keras; looking at a backup does not
        return getattr(importlib.import_module("phalanx.checkpoint.model"), name)
    raise AttributeError(f"module 'phalanx.checkpoint' has no attribute {name!r}")
