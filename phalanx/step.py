"""The steps in the global view: the one-device program over the whole batch, split by the compiler.

Batch statistics, dropout masks, clipping, regularisers and finite checks are those of one device by
construction, because nothing here knows how many replicas there are (GSPMD, Xu et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from phalanx.rows import cut
from phalanx.uneven import needs_whole

Step = Callable[[Any, Any, int | None], tuple[Any, Any]]
"""`(state, placed batch, true rows) -> (logs or outputs, new state)`."""


def update_step(step: Callable[[Any, Any], tuple[Any, Any]], whole: Any = None) -> Step:
    """A Keras `train_step` or `test_step` over the true rows of a placed batch.

    Args:
        step: `(state, batch) -> (logs, state)`.
        whole: Sharding that holds a remainder whole on every replica, where it cannot be split unevenly.

    Returns:
        The step with the static number of true rows as its third argument.
    """

    def run(state: Any, batch: Any, rows: int | None) -> tuple[Any, Any]:
        return step(state, _remainder(step, state, batch, rows, whole))

    return run


def predict_step(step: Callable[[Any, Any], tuple[Any, Any]], whole: Any) -> Step:
    """A Keras `predict_step` over the true rows of a placed batch.

    Args:
        step: `((trainable, non_trainable), batch) -> (outputs, non_trainable)`.
        whole: Sharding that holds outputs whole on every replica, for remainders that do not divide.

    Returns:
        The step with the static number of true rows as its third argument.
    """

    def run(state: Any, batch: Any, rows: int | None) -> tuple[Any, Any]:
        outputs, non_trainable = step(state, _remainder(step, state, batch, rows, whole))
        if rows is not None:
            outputs = jax.lax.with_sharding_constraint(outputs, whole)
        return outputs, (state[0], non_trainable)

    return run


def _remainder(step: Callable[..., Any], state: Any, batch: Any, rows: int | None, whole: Any) -> Any:
    """The true rows of a batch, laid out so that the compiler can split the step."""
    batch = cut(batch, rows)
    if rows is None or whole is None or not needs_whole(step, state, batch):
        return batch
    return jax.lax.with_sharding_constraint(batch, whole)
