"""Keras's `LossScaleOptimizer`: its scale inside a traced step, and gradients that were unscaled by hand.

Keras divides gradients by the scale when it applies them. A user who wants true gradients before that, to
clip them, has to divide them, too; so what `unscale` hands out is noted on the optimizer, and the next apply
multiplies it back first. Scales are powers of two, so nothing is lost by that.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from phalanx.engine.keras.found import Model, keras, keras_backend
from phalanx.errors import EngineError, SettingError, UnsupportedError, message
from phalanx.finite_step import Scaling

LossScaleOptimizer = keras.optimizers.LossScaleOptimizer

SIGNATURES = {
    "stateless_apply": "optimizer_variables grads trainable_variables",
    "scale_loss": "loss",
    "check_finite": "grads",
}
"""The methods of Keras's optimizer that are used or wrapped here, with their parameters."""


@dataclass
class Notes:
    """What is remembered of an optimizer between its calls.

    Args:
        values: The optimizer's variables in the step that is being traced; None outside our steps.
        scaled: True once a loss was scaled.
        finite: True (traced) if all gradients that `unscale` handed out are finite; None if the next apply
            gets gradients as Keras expects them.
    """

    values: Sequence[Any] | None = None
    scaled: bool = False
    finite: Any = None


def scales(optimizer: Any) -> bool:
    """True for an optimizer that scales the loss and skips steps."""
    return isinstance(optimizer, LossScaleOptimizer)


def scaling(model: Model) -> Scaling | None:
    """What a step must know of a model's loss scale; None if its optimizer has none."""
    optimizer = getattr(model, "optimizer", None)
    if not scales(optimizer):
        return None

    def results(metrics: Any) -> Any:
        mapping = list(zip(model.metrics_variables, metrics, strict=True))
        with keras_backend.StatelessScope(state_mapping=mapping):
            return model.get_metrics_result()

    return Scaling(
        scale=_place(optimizer),
        goes_on=[variable.name == "seed_generator_state" for variable in model.non_trainable_variables],
        results=results,
    )


def followed(model: Model, step: Callable[..., Any]) -> Callable[..., Any]:
    """A training step of a model, with its optimizer knowing the state that is being traced.

    Args:
        model: A model whose optimizer scales the loss.
        step: `(state, ...)` with the optimizer's variables third in the state.

    Returns:
        The same step.
    """

    def run(state: Any, *rest: Any) -> Any:
        with _following(model.optimizer, state[2]):
            return step(state, *rest)

    return run


@contextlib.contextmanager
def _following(optimizer: Any, values: Sequence[Any]) -> Iterator[None]:
    notes = _notes(optimizer)
    notes.values, notes.finite = values, None
    try:
        yield
    finally:
        notes.values, notes.finite = None, None


def scale_up(optimizer: Any, loss: Any, optimizer_variables: Sequence[Any] | None) -> Any:
    """A loss times the optimizer's scale; the loss itself where nothing scales."""
    _refuse_others(optimizer, "get_scaled_loss(self.optimizer, loss)")
    if not scales(optimizer):
        return loss
    install()
    _notes(optimizer).scaled = True
    return loss * _scale(optimizer, optimizer_variables, loss)


def unscale(optimizer: Any, gradients: Sequence[Any], optimizer_variables: Sequence[Any] | None) -> Any:
    """Gradients divided by the optimizer's scale, which the next apply will know of."""
    _refuse_others(optimizer, "get_unscaled_gradients(self.optimizer, gradients)")
    if not scales(optimizer):
        return gradients
    install()
    notes = _notes(optimizer)
    _refuse_unscaled(notes, "get_unscaled_gradients")
    scale = _scale(optimizer, optimizer_variables, next((g for g in gradients if g is not None), None))
    finite = optimizer.check_finite(gradients)
    notes.finite = finite if notes.finite is None else notes.finite & finite
    return _each(optimizer, gradients, lambda gradient: gradient / scale)


@functools.cache
def install() -> None:
    """Have Keras's optimizer take gradients that `unscale` handed out, once per process.

    Raises:
        EngineError: Its methods are not those that this file was written for.
    """
    wrong = differences()
    if wrong:
        raise EngineError(
            message(
                "Phalanx 0.1 understands the LossScaleOptimizer of Keras 3.15.",
                f"Keras {keras.__version__}: {'; '.join(wrong)}",
                'pip install "keras>=3.15,<3.16"',
            )
        )
    LossScaleOptimizer.scale_loss = _noting(LossScaleOptimizer.scale_loss)
    LossScaleOptimizer.stateless_apply = _rescaling(LossScaleOptimizer.stateless_apply)


def differences() -> list[str]:
    """The methods of Keras's optimizer whose parameters are not those that are expected here."""
    return [
        f"LossScaleOptimizer.{name}({', '.join(_parameters(name)) or 'missing'})"
        for name, wanted in SIGNATURES.items()
        if _parameters(name) != wanted.split()
    ]


def _parameters(name: str) -> list[str]:
    method = getattr(LossScaleOptimizer, name, None)
    return [] if method is None else [p for p in inspect.signature(method).parameters if p != "self"]


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale_loss(self: Any, loss: Any) -> Any:
        _notes(self).scaled = True
        return original(self, loss)

    return scale_loss


def _rescaling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        grads = _as_keras_expects(self, grads, optimizer_variables)
        trainable, optimizer = original(self, optimizer_variables, grads, trainable_variables)
        notes = _notes(self)
        if notes.values is not None:
            notes.values = optimizer
        return trainable, optimizer

    return stateless_apply


def _as_keras_expects(optimizer: Any, grads: Any, optimizer_variables: Any) -> Any:
    """Gradients of the scaled loss, not finite where one of them was not before the user saw them."""
    notes = _notes(optimizer)
    if notes.values is not None:
        _refuse_unscaled(notes, "apply")
    if notes.finite is None:
        return grads
    finite, notes.finite = notes.finite, None
    scale = _scale(optimizer, optimizer_variables, next((g for g in grads if g is not None), None))
    return _each(optimizer, grads, lambda gradient: jnp.where(finite, gradient * scale, jnp.nan))


def _each(optimizer: Any, gradients: Any, change: Callable[[Any], Any]) -> list[Any]:
    """Change the gradients that Keras will divide by the scale, and no others."""
    variables = optimizer._trainable_variables if optimizer.built else []
    if len(variables) != len(gradients):  # a part of them: Keras says later what it thinks of that
        variables = [None] * len(gradients)
    return [
        gradient
        if gradient is None or (v is not None and optimizer._overwrite_variable_with_gradient(v))
        else change(gradient)
        for gradient, v in zip(gradients, variables, strict=True)
    ]


def _notes(optimizer: Any) -> Notes:
    notes = optimizer.__dict__.get("_phalanx_notes")
    if notes is None:
        notes = Notes()
        object.__setattr__(optimizer, "_phalanx_notes", notes)  # past Keras's tracking
    return notes


def _place(optimizer: Any) -> int:
    return next(i for i, v in enumerate(optimizer.variables) if v is optimizer.dynamic_scale)


def _scale(optimizer: Any, optimizer_variables: Sequence[Any] | None, like: Any) -> Any:
    """The scale of the step that is being traced, or of the variable outside one."""
    if not optimizer.built:
        return optimizer.initial_scale
    values = _notes(optimizer).values if optimizer_variables is None else optimizer_variables
    if values is not None:
        return values[_place(optimizer)]
    variable = optimizer.dynamic_scale
    value = None
    if keras_backend.in_stateless_scope():
        value = keras_backend.get_stateless_scope().get_current_value(variable)
    if value is None and variable._value is not None and not isinstance(like, jax.core.Tracer):
        value = variable._value
    if value is None:
        raise UnsupportedError(
            message(
                "Inside a compiled step the loss scale is one of the arrays of the step's state.",
                f"{optimizer.name!r} in a step that is not run by a strategy, without optimizer_variables",
                "phalanx.get_scaled_loss(self.optimizer, loss, optimizer_variables=optimizer_variables)",
            )
        )
    return value


def _refuse_unscaled(notes: Notes, what: str) -> None:
    if notes.scaled:
        return
    raise UnsupportedError(
        message(
            "A LossScaleOptimizer divides gradients by its scale, so the loss is multiplied by it first.",
            f"{what} with the gradients of a loss that was not scaled",
            "loss = phalanx.get_scaled_loss(self.optimizer, loss)   # in the function to differentiate",
        )
    )


def _refuse_others(optimizer: Any, line: str) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise SettingError(
            message(
                "The first argument is the optimizer.",
                f"{type(optimizer).__name__}",
                f"phalanx.{line}",
            )
        )
    if not scales(optimizer) and optimizer.loss_scale_factor is not None:
        raise UnsupportedError(
            message(
                "A fixed loss_scale_factor is divided out by the optimizer, and cannot be taken out by hand.",
                f"{type(optimizer).__name__}(loss_scale_factor={optimizer.loss_scale_factor})",
                "keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())",
            )
        )
