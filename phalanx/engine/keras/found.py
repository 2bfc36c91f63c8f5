"""Keras on its JAX backend, found or refused; the names of its internals that Phalanx uses."""

from __future__ import annotations

import sys

from phalanx.errors import ScopeError, message
from phalanx.host import env

_backend = env.read("KERAS_BACKEND") or "jax"
if "keras" in sys.modules and sys.modules["keras"].config.backend() != "jax":
    _backend = sys.modules["keras"].config.backend()
if _backend != "jax":
    raise ScopeError(
        message(
            "Phalanx trains Keras models on the JAX backend.",
            f"Keras runs, or is told to run, on the {_backend!r} backend (KERAS_BACKEND)",
            "export KERAS_BACKEND=jax   # or: import phalanx before keras",
        )
    )

import keras  # noqa: E402
from keras.src import backend as keras_backend  # noqa: E402
from keras.src import tree as keras_tree  # noqa: E402
from keras.src.backend.common import global_state  # noqa: E402
from keras.src.backend.jax import distribution_lib as jax_distribution  # noqa: E402
from keras.src.backend.jax import random as keras_random  # noqa: E402
from keras.src.backend.jax.trainer import JAXTrainer  # noqa: E402
from keras.src.distribution import distribution_lib  # noqa: E402
from keras.src.trainers import data_adapters  # noqa: E402
from keras.src.trainers import trainer as base_trainer  # noqa: E402
from keras.src.trainers.data_adapters import data_adapter_utils  # noqa: E402
from keras.src.utils import rng_utils  # noqa: E402

Distribution = distribution_lib.Distribution
DeviceMesh = keras.distribution.DeviceMesh
TensorLayout = keras.distribution.TensorLayout
Model = keras.Model
Callback = keras.callbacks.Callback

__all__ = [
    "Callback",
    "DeviceMesh",
    "Distribution",
    "JAXTrainer",
    "Model",
    "TensorLayout",
    "base_trainer",
    "data_adapter_utils",
    "data_adapters",
    "distribution_lib",
    "global_state",
    "jax_distribution",
    "keras",
    "keras_backend",
    "keras_random",
    "keras_tree",
    "rng_utils",
]
