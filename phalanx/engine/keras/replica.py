"""A Keras training step, taken apart for the replica view."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from phalanx import replica_step
from phalanx.engine.keras.data import unpack
from phalanx.engine.keras.found import JAXTrainer, Model, keras_backend
from phalanx.engine.keras.masks import rows_from
from phalanx.engine.keras.model import compiles
from phalanx.rows import has_rows


def replica_view_refusal(model: Model) -> str | None:
    """Why the replica view cannot take a model's training step apart exactly, or None if it can."""
    if type(model).train_step is not JAXTrainer.train_step:
        return f"{type(model).__name__} overrides train_step"
    if not compiles(model):
        return "compile(run_eagerly=True) or jit_compile=False"
    kinds = _reductions(model)
    if kinds == {"sum"} and model.losses:
        return "a loss with reduction='sum' together with regularisers, which average"
    if not kinds <= {"sum_over_batch_size", "mean"} and kinds != {"sum"}:
        return f"losses with reduction {', '.join(sorted(map(repr, kinds)))}"
    return None


def replica_parts(model: Model, row_by_row: bool = False) -> replica_step.Parts:
    """A model's own training step, taken apart for the replica view.

    Args:
        model: A compiled and built model that `replica_view_refusal` lets pass.
        row_by_row: True if it computes each row by itself; see `flat.decide`.
    """

    def loss(
        trainable: Any, non_trainable: Any, metrics: Any, optimizer: Any, batch: Any, first: Any = None
    ) -> Any:
        x, y, sample_weight = unpack(batch)
        rows = next(column.shape[0] for column in jax.tree.leaves(batch) if has_rows(column))
        part = contextlib.nullcontext() if first is None else rows_from(first, rows)
        with part:
            return model.compute_loss_and_updates(
                trainable,
                non_trainable,
                metrics,
                x,
                y,
                sample_weight,
                training=True,
                optimizer_variables=optimizer,
            )

    def measure(metrics: Any, loss: Any, y_pred: Any, batch: Any) -> Any:
        x, y, sample_weight = unpack(batch)
        return model._update_metrics_variables(metrics, loss, x, y, y_pred, sample_weight)

    return replica_step.Parts(
        loss=loss,
        update=model.optimizer.stateless_apply,
        measure=measure,
        merges=[_merge(variable) for variable in model.non_trainable_variables],
        sums=_reductions(model) == {"sum"},
        row_by_row=row_by_row,
    )


def _reductions(model: Model) -> set[str]:
    flat = model._compile_loss._flat_losses if model._compile_loss is not None else []
    return {str(getattr(each.loss, "reduction", "sum_over_batch_size")) for each in flat}


def _merge(variable: Any) -> str:
    """How a non-trainable variable's copies become one after a step of unequal replicas."""
    if variable.name == "seed_generator_state":
        return "seed"
    if variable.aggregation == "sum":
        return "sum"
    whole_number = not keras_backend.is_float_dtype(variable.dtype)
    return "first" if whole_number or variable.aggregation == "only_first_replica" else "mean"
