"""The gradients' noise on a coming batch, measured beside the training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from phalanx.engine import keras as engine
from phalanx.engine.arrays import Placed
from phalanx.errors import ScopeError, SettingError, UnsupportedError, message
from phalanx.noise_step import noise_step
from phalanx.training.home import Home, home_of


@dataclass(frozen=True)
class Look:
    """One look at the gradients of parts of a batch.

    Args:
        squared: `(mean squared norm of the parts, squared norm of their mean)`, scalars on the devices.
        small: Rows of one part.
        big: Rows of all parts.
    """

    squared: Any
    small: int
    big: int


def check(model: engine.Model) -> None:
    """Refuse models whose gradients cannot be looked at.

    Raises:
        ScopeError: The model has no strategy, so its batches do not pass through Phalanx.
        UnsupportedError: Its training step cannot be taken apart.
    """
    if home_of(model) is None:
        raise ScopeError(
            message(
                "The noise scale is read from the batches of a strategy's replicas.",
                f"{model.name!r} was made and compiled outside a scope",
                "with phalanx.OneDeviceStrategy().scope(): model = build_model()",
            )
        )
    why = engine.replica_view_refusal(model)
    if why:
        raise UnsupportedError(
            message(
                "The noise scale needs Keras's own train_step, and losses that all average or all sum.",
                why,
                "model.fit(...)   # without GradientNoiseScale",
            )
        )


def rows_of(batch: Placed, replicas: int) -> tuple[int, int]:
    """Rows of one part and of all parts that are looked at: half of each replica's true rows.

    Returns:
        `(small, big)`; zeros if the batch is too short to have parts.
    """
    last = min(batch.sizes)  # the shortest share
    small = last // 2
    small = last if replicas > 1 and last == 1 else small
    return small, small * max(2, replicas)


def measure(model: engine.Model, home: Home, state: Any, batch: Placed) -> Look | None:
    """Dispatch the measurement for a placed batch, on the state before its step.

    Args:
        model: A model that `check` let pass.
        home: Its strategy and steps.
        state: The four lists that its training step carries; they are only read.
        batch: The coming batch.

    Returns:
        The look, dispatched, or None for a batch that is too short.
    """
    placement = home.strategy.placement
    small, big = rows_of(batch, placement.replicas)
    if not small:
        return None
    key = ("noise", tuple(map(len, state)), small)
    if key not in home.steps:
        home.steps[key] = jax.jit(noise_step(engine.replica_parts(model), placement.mesh, small))
    return Look(home.steps[key](state, batch.arrays), small, big)


def check_every(every: Any) -> None:
    """Refuse a number of steps between two looks that is not one."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise SettingError(
            message(
                "every is a whole number of steps, 1 or more.",
                f"every={every!r}",
                "phalanx.callbacks.GradientNoiseScale(every=50)",
            )
        )
