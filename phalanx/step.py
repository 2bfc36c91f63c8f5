"""The steps in the global view: the one-device program over the whole batch, split by the compiler.

Batch statistics, dropout masks, clipping, regularisers and finite checks are those of one device by
construction, because nothing here knows how many replicas there are (GSPMD, Xu et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from phalanx.rows import cut

Step = Callable[[Any, Any, int | None], tuple[Any, Any]]
"""`(state, placed batch, true rows) -> (logs or outputs, new state)`."""


def update_step(step: Callable[[Any, Any], tuple[Any, Any]]) -> Step:
    """A Keras `train_step` or `test_step` over the true rows of a placed batch.

    Args:
        step: `(state, batch) -> (logs, state)`.

    Returns:
        The step with the static number of true rows as its third argument.
    """

    def run(state: Any, batch: Any, rows: int | None) -> tuple[Any, Any]:
        return step(state, cut(batch, rows))

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
        outputs, non_trainable = step(state, cut(batch, rows))
        if rows is not None:
            outputs = jax.lax.with_sharding_constraint(outputs, whole)
        return outputs, (state[0], non_trainable)

    return run
