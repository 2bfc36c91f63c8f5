"""What helps to test a training script: faults on purpose."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.testing import chaos

__all__ = ["chaos"]


def __getattr__(name: str) -> Any:
    if name == "chaos":  # it loads JAX and Keras
        return importlib.import_module("phalanx.testing.chaos")
    raise AttributeError(f"module 'phalanx.testing' has no attribute {name!r}")
