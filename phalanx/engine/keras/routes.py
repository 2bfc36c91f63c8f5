"""Keras's model methods, checked by name and signature and routed through Phalanx."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from phalanx.engine.keras import loss_scale
from phalanx.engine.keras.found import JAXTrainer, Model, base_trainer, jax_distribution, keras
from phalanx.errors import EngineError, message

ROUTED = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")

_SIGNATURES = {
    "fit": "x y batch_size epochs verbose callbacks validation_split validation_data shuffle class_weight "
    "sample_weight initial_epoch steps_per_epoch validation_steps validation_batch_size validation_freq",
    "evaluate": "x y batch_size verbose sample_weight steps callbacks return_dict kwargs",
    "predict": "x batch_size verbose steps callbacks",
    "train_on_batch": "x y sample_weight class_weight return_dict",
    "test_on_batch": "x y sample_weight return_dict",
    "predict_on_batch": "x",
    "train_step": "state data",
    "test_step": "state data",
    "predict_step": "state data",
    "compute_loss_and_updates": "trainable_variables non_trainable_variables metrics_variables x y "
    "sample_weight training optimizer_variables",
    "_update_metrics_variables": "metrics_variables unscaled_loss x y y_pred sample_weight",
    "_symbolic_build": "iterator data_batch",
    "jax_state_sync": "",
    "_get_metrics_result_or_logs": "logs",
    "_flatten_metrics_in_order": "logs",
    "_should_eval": "epoch validation_freq",
    "_assert_compile_called": "method_name",
}


def check() -> None:
    """Refuse a Keras whose internals are not those that this file was written for.

    Raises:
        EngineError: Naming what is missing or different.
    """
    wrong = [
        f"{name}({', '.join(_parameters(name)) or 'missing'})"
        for name, wanted in _SIGNATURES.items()
        if _parameters(name) != wanted.split()
    ]
    wrong += loss_scale.differences()
    if keras.config.is_nnx_enabled():
        wrong.append("keras.config.enable_nnx() is on")
    if wrong:
        raise EngineError(
            message(
                "Phalanx 0.1 understands Keras 3.15 on its JAX backend, without NNX.",
                f"Keras {keras.__version__}: {'; '.join(wrong)}",
                'pip install "keras>=3.15,<3.16"',
            )
        )


@functools.cache
def install(hooks: Hooks) -> None:
    """Route Keras's model methods through `hooks`, once per process.

    Models without a strategy keep Keras's own methods to the letter.
    """
    check()
    loss_scale.install()
    for name in ROUTED:
        setattr(JAXTrainer, name, _routed(name, getattr(JAXTrainer, name), hooks))
    JAXTrainer.__init__ = _followed(JAXTrainer.__init__, hooks.created)
    jax_distribution.distribute_tensor = _spread(jax_distribution.distribute_tensor)
    # On the base class, where Keras looks to see whether a model overrides compile.
    base_trainer.Trainer.compile = _followed(base_trainer.Trainer.compile, hooks.compiled)


class Hooks:
    """What the rooms above do with a model; they hand it down, so that this door imports none of them.

    Args:
        route: `(model, method name) -> our method or None` for Keras's own.
        created: Called with each new model.
        compiled: Called with each model after `compile`.
        plain: Entered around Keras's own methods.
    """

    def __init__(
        self,
        route: Callable[[Model, str], Callable[..., Any] | None],
        created: Callable[[Model], None],
        compiled: Callable[[Model], None],
        plain: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.route, self.created, self.compiled, self.plain = route, created, compiled, plain


def _routed(name: str, original: Callable[..., Any], hooks: Hooks) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(model: Model, *args: Any, **kwargs: Any) -> Any:
        ours = hooks.route(model, name)
        if ours is not None:
            return ours(*args, **kwargs)
        with hooks.plain():
            return original(model, *args, **kwargs)

    return method


def _spread(original: Callable[..., Any]) -> Callable[..., Any]:
    """Assignments to variables that lie on the devices of several workers, without asking the others.

    `jax.device_put`, which Keras uses, compares the value over all workers each time.
    """

    @functools.wraps(original)
    def distribute(tensor: Any, layout: Any) -> Any:
        where = getattr(layout, "backend_layout", layout)
        everywhere = getattr(where, "is_fully_addressable", True)
        if (
            everywhere
            or isinstance(tensor, jax.core.Tracer)
            or not getattr(tensor, "is_fully_addressable", True)
        ):
            return original(tensor, layout)
        host = np.asarray(tensor)
        return jax.make_array_from_callback(host.shape, where, lambda index: host[index])

    return distribute


def _followed(original: Callable[..., Any], then: Callable[[Model], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(model: Model, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        then(model)

    return method


def _parameters(name: str) -> list[str]:
    method = getattr(JAXTrainer, name, None)
    return [] if method is None else [p for p in inspect.signature(method).parameters if p != "self"]
