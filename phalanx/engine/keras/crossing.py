"""What a Keras model is made of, for the decision how its gradients travel between workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.engine.keras.found import Model, keras
from phalanx.engine.keras.replica import replica_view_refusal
from phalanx.flat import Facts

_CHANCES = ("rate", "dropout", "recurrent_dropout")


def crossing(model: Model) -> Facts:
    """The facts about a compiled and built model; see `flat.decide`."""
    parts = list(_parts(model))
    losses = getattr(model._compile_loss, "_flat_losses", None) or []
    inner = [each.loss for each in losses if each.loss is not None]
    return Facts(
        layers=[_name(part) for part in parts],
        losses=[_loss_name(loss) for loss in inner],
        reductions=[str(getattr(loss, "reduction", "of its own")) for loss in inner],
        random=[part.name for part in parts if any(getattr(part, name, 0) for name in _CHANCES)],
        masked=[part.name for part in parts if getattr(part, "mask_zero", False)]
        + [_loss_name(loss) for loss in inner if _ignores(loss)],
        added=[part.name for part in parts if getattr(part, "activity_regularizer", None) is not None],
        half=[f"{part.name} computes in {_computes(part)}" for part in parts if "16" in _computes(part)],
        own_call=_own_call(model) or _stateful(parts),
        own_step=replica_view_refusal(model) if losses else "it has no loss, or none that is built",
    )


def _parts(model: Model) -> Iterator[Any]:
    """Every layer and operation of a model, those of inner models too."""
    listed = model.operations if isinstance(model, keras.Model) and hasattr(model, "operations") else []
    for part in {id(each): each for each in [*listed, *model.layers]}.values():
        if isinstance(part, keras.Model):
            yield from _parts(part)
        else:
            yield part


def _computes(part: Any) -> str:
    return str(getattr(part, "compute_dtype", None))


def _own_call(model: Model) -> str | None:
    """Why a model's code cannot be read off its layers."""
    inner = [part for part in model._flatten_layers() if isinstance(part, keras.Model)]
    for each in [model, *inner]:
        plain = isinstance(each, keras.Sequential) or hasattr(each, "operations")
        known = type(each).__module__.startswith("keras.src.models")
        if not (plain and known):
            return f"{type(each).__name__} has code of its own"
    return None


def _stateful(parts: list[Any]) -> str | None:
    kept = [part.name for part in parts if getattr(part, "stateful", False)]
    return f"{kept[0]} keeps a state from batch to batch" if kept else None


def _name(part: Any) -> str:
    """A class of Keras's own by its name, any other one by its module too."""
    kind = type(part)
    own = kind.__module__.startswith("keras.src.layers")
    return kind.__name__ if own else f"{kind.__module__}.{kind.__name__}"


def _loss_name(loss: Any) -> str:
    """A loss of Keras's own by its class or function, any other one by its module too."""
    kind = type(loss)
    known = loss.fn if kind.__name__ == "LossFunctionWrapper" else kind
    own = known.__module__.startswith("keras.src.losses")
    return known.__name__ if own else f"{known.__module__}.{known.__name__}"


def _ignores(loss: Any) -> bool:
    """A loss that leaves a class out counts what remains over the whole batch."""
    return getattr(loss, "ignore_class", None) is not None
