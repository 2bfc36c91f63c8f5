"""A training step whose loss scale may skip it: a skipped step leaves no trace, and logs say so.

Keras's `LossScaleOptimizer` leaves the weights alone when a gradient is not finite, and halves its scale; but
the forward pass of that step has reached metrics and moving statistics by then. Here both go back to their
values before the step, inside the compiled step, so that an epoch's results are those of its finite steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from phalanx.rows import Rows
from phalanx.step import Step

LOSS_SCALE, SKIPPED = "loss_scale", "skipped_steps"
"""Names in the logs: the scale after the step, and the steps of this epoch that were skipped."""

CountedStep = Callable[[Any, Any, Any, Rows], tuple[Any, Any, Any]]
"""`(state, counts, placed batch, true rows) -> (logs, new state, new counts)`."""


@dataclass(frozen=True)
class Scaling:
    """What a step must know of a model whose optimizer scales the loss.

    Args:
        scale: Place of the loss scale among the optimizer's variables.
        goes_on: For each non-trainable variable, True if it goes on through a skipped step (seeds).
        results: Metric variables -> the results that they stand for, by name.
    """

    scale: int
    goes_on: Sequence[bool]
    results: Callable[[Any], Mapping[str, Any]]


def no_counts() -> list[Any]:
    """Steps of an epoch at its start: none skipped, none finite."""
    return [jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)]


def guard(step: Step, scaling: Scaling) -> CountedStep:
    """Make a training step undo and count what its loss scale skips.

    Args:
        step: `((trainable, non_trainable, optimizer, metrics), batch, rows) -> (logs, state)`.
        scaling: Where the scale stands, what goes on, how results are computed.

    Returns:
        The step with the counts of its epoch, skipped and finite, carried along. The scale of a skipped step
        is smaller afterwards, which is how it is known: Keras halves it then and nowhere else.
    """

    def run(state: Any, counts: Any, batch: Any, rows: Rows) -> tuple[Any, Any, Any]:
        _, old_non_trainable, old_optimizer, old_metrics = state
        logs, (trainable, non_trainable, optimizer, metrics) = step(state, batch, rows)
        scale = optimizer[scaling.scale]
        skipped = scale < old_optimizer[scaling.scale]
        skipped_steps, finite_steps = counts
        counts = [skipped_steps + skipped, finite_steps + ~skipped]

        metrics = _kept(skipped, old_metrics, metrics)
        non_trainable = [
            new if goes_on else jnp.where(skipped, old, new)
            for goes_on, old, new in zip(scaling.goes_on, old_non_trainable, non_trainable, strict=True)
        ]
        if isinstance(logs, Mapping):
            # With no finite step yet there is nothing to report, and the skipped step's own numbers stand.
            logs = _restated(skipped & (finite_steps > 0), logs, scaling.results(metrics))
            logs |= {LOSS_SCALE: scale, SKIPPED: counts[0]}
        return logs, (trainable, non_trainable, optimizer, metrics), counts

    return run


def _kept(skipped: Any, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    return [jnp.where(skipped, before, after) for before, after in zip(old, new, strict=True)]


def _restated(skipped: Any, logs: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Logs whose metrics are those of the steps before, if this one was skipped; other entries stay."""
    restated = dict(logs)
    for name in logs.keys() & results.keys():
        shown, kept = jnp.asarray(logs[name]), jnp.asarray(results[name])
        if shown.shape == kept.shape:
            restated[name] = jnp.where(skipped, kept.astype(shown.dtype), shown)
    return restated
