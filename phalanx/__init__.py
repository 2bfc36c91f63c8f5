"""Phalanx: distributed training for Keras 3 models on the JAX engine.

Importing it starts nothing and loads neither JAX nor Keras; it only selects Keras's JAX backend where
nobody has chosen one yet. Names load when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from phalanx.host import env as _env

if TYPE_CHECKING:
    from phalanx import callbacks, checkpoint, cluster, testing
    from phalanx.data.input_context import InputContext
    from phalanx.errors import (
        CheckpointError,
        ClusterError,
        ColumnError,
        DataError,
        DeviceError,
        EngineError,
        PhalanxError,
        PhalanxWarning,
        ScopeError,
        SettingError,
        UnsupportedError,
        UserError,
        WorkerLost,
    )
    from phalanx.loss_scale import get_scaled_loss, get_unscaled_gradients
    from phalanx.parity import verify
    from phalanx.plan import Plan
    from phalanx.precision import Precision
    from phalanx.recipe import Recipe
    from phalanx.strategies.base import Strategy
    from phalanx.strategies.mirrored import MirroredStrategy
    from phalanx.strategies.multi_worker import MultiWorkerMirroredStrategy
    from phalanx.strategies.one_device import OneDeviceStrategy, get_strategy, has_strategy

__version__ = "0.1.0"

_HOME = {
    "CheckpointError": "errors",
    "ClusterError": "errors",
    "ColumnError": "errors",
    "DataError": "errors",
    "DeviceError": "errors",
    "EngineError": "errors",
    "InputContext": "data.input_context",
    "MirroredStrategy": "strategies.mirrored",
    "MultiWorkerMirroredStrategy": "strategies.multi_worker",
    "OneDeviceStrategy": "strategies.one_device",
    "PhalanxError": "errors",
    "PhalanxWarning": "errors",
    "Plan": "plan",
    "Precision": "precision",
    "Recipe": "recipe",
    "ScopeError": "errors",
    "SettingError": "errors",
    "Strategy": "strategies.base",
    "UnsupportedError": "errors",
    "UserError": "errors",
    "WorkerLost": "errors",
    "get_scaled_loss": "loss_scale",
    "get_strategy": "strategies.one_device",
    "get_unscaled_gradients": "loss_scale",
    "has_strategy": "strategies.one_device",
    "verify": "parity",
}

_MODULES = ("callbacks", "checkpoint", "cluster", "testing")

__all__ = [
    "CheckpointError",
    "ClusterError",
    "ColumnError",
    "DataError",
    "DeviceError",
    "EngineError",
    "InputContext",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "PhalanxError",
    "PhalanxWarning",
    "Plan",
    "Precision",
    "Recipe",
    "ScopeError",
    "SettingError",
    "Strategy",
    "UnsupportedError",
    "UserError",
    "WorkerLost",
    "__version__",
    "callbacks",
    "checkpoint",
    "cluster",
    "get_scaled_loss",
    "get_strategy",
    "get_unscaled_gradients",
    "has_strategy",
    "testing",
    "verify",
]

if "keras" not in sys.modules:
    _env.set_default("KERAS_BACKEND", "jax")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"phalanx.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"phalanx.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
