"""The suitcase: a model's variables as the arrays that a step carries, and where variables live."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from phalanx.engine.keras.found import Distribution, Model, distribution_lib
from phalanx.host.interrupts import held

PARTS = ("trainable", "non_trainable", "optimizer", "metrics")
"""The suitcase: the four lists of arrays that a Keras training step carries."""


def current_distribution() -> Distribution | None:
    """The distribution that new variables follow."""
    return distribution_lib.distribution()


def set_distribution(distribution: Distribution | None) -> None:
    """Make new variables follow a distribution."""
    distribution_lib.set_distribution(distribution)


def note(model: Model, name: str, value: Any) -> None:
    """Pin a value of ours to a model, past Keras's tracking, so that no save or config sees it."""
    object.__setattr__(model, f"_phalanx_{name}", value)


def noted(model: Model, name: str) -> Any:
    """Read a value pinned by `note`; None if there is none."""
    return model.__dict__.get(f"_phalanx_{name}")


def variables_of(model: Model, parts: tuple[str, ...] = PARTS) -> list[list[Any]]:
    """The Keras variables of each part, in the order in which steps carry them."""
    optimizer = getattr(model, "optimizer", None)
    lists = {
        "trainable": lambda: model.trainable_variables,
        "non_trainable": lambda: model.non_trainable_variables,
        "optimizer": lambda: [] if optimizer is None else optimizer.variables,
        "metrics": lambda: model.metrics_variables,
    }
    return [lists[part]() for part in parts]


def take(model: Model, parts: tuple[str, ...]) -> tuple[list[Any], ...]:
    """Take the arrays out of the model's variables, for a loop that will donate them to its steps."""
    variables = variables_of(model, parts)
    state = tuple([variable.value for variable in part] for part in variables)
    seen: set[int] = set()
    for values in state:
        for i, value in enumerate(values):
            if id(value) in seen:  # two variables, one array (weights after EMA): a step donates each once
                values[i] = value.copy()
            seen.add(id(value))
    lend(model, parts, state)
    for part in variables:
        for variable in part:
            variable._value = None
    return state


def lend(model: Model, parts: tuple[str, ...], state: Any) -> None:
    """Let callbacks that touch the model find its newest state (they call Keras's own sync)."""
    # Past Keras's attribute tracking, which would walk the whole state at every step.
    model.__dict__["_jax_state"] = {f"{part}_variables": v for part, v in zip(parts, state, strict=True)}
    model.__dict__["_jax_state_synced"] = False


def give_back(model: Model) -> None:
    """Put the newest arrays back into the model's variables."""
    with held():
        model.jax_state_sync()


def is_home(model: Model) -> bool:
    """True if the variables hold the newest state, for instance because a callback asked for it."""
    return bool(model._jax_state_synced)


def begin(model: Model) -> None:
    """Say that a loop starts and the variables hold the newest state."""
    model.__dict__["_jax_state_synced"] = True


def end(model: Model) -> None:
    """Put the state back and forget the loan."""
    with held():
        model.jax_state_sync()
        model.__dict__["_jax_state"] = None


def raw_value(variable: Any) -> Any:
    """The array in a variable, whatever scope is active; None if it has none."""
    return variable._value


def move(variable: Any, value: Any, sharding: Any) -> None:
    """Give a variable a new home; later assignments follow it there."""
    variable._layout = sharding
    variable._value = value


def on_this_device(value: Any) -> Any:
    """A NumPy array as an ordinary array of this process."""
    return jnp.asarray(value)
