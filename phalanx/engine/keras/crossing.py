"""What a Keras model is made of, for the decision how its gradients travel between workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.engine.keras.found import Model, keras
from phalanx.engine.keras.masks import drawn_alike
from phalanx.engine.keras.replica import replica_view_refusal
from phalanx.flat import Facts

_CHANCES = ("rate", "dropout", "recurrent_dropout")
_MASKING = ("Dropout", "MultiHeadAttention", "GroupedQueryAttention", "Attention")
_ELEMENTWISE = ("Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Maximum", "Minimum")


def crossing(model: Model) -> Facts:
    """The facts about a compiled and built model; see `flat.decide`."""
    parts = list(_parts(model))
    losses = getattr(model._compile_loss, "_flat_losses", None) or []
    inner = [each.loss for each in losses if each.loss is not None]
    return Facts(
        layers=[_name(part) for part in parts],
        losses=[_loss_name(loss) for loss in inner],
        reductions=[str(getattr(loss, "reduction", "of its own")) for loss in inner],
        random=[part.name for part in parts if _draws(part)],
        masked=[part.name for part in parts if getattr(part, "mask_zero", False)]
        + [_loss_name(loss) for loss in inner if _ignores(loss)],
        added=[part.name for part in parts if getattr(part, "activity_regularizer", None) is not None],
        half=[f"{part.name} computes in {_computes(part)}" for part in parts if "16" in _computes(part)],
        own_call=_own_call(model) or _stateful(parts),
        own_step=replica_view_refusal(model) if losses else "it has no loss, or none that is built",
    )


def _draws(part: Any) -> bool:
    """True if a layer draws random numbers that are not masks as `engine.keras.masks` has them."""
    if not any(getattr(part, name, 0) for name in _CHANCES):
        return False
    return not drawn_alike() or _name(part) not in _MASKING or getattr(part, "noise_shape", None) is not None


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
    own = kind.__module__.startswith("keras.src.layers") or _is_elementwise(part)
    return kind.__name__ if own else f"{kind.__module__}.{kind.__name__}"


def _is_elementwise(part: Any) -> bool:
    """True for an operation such as `a + b` where neither side's rows meet others by broadcasting."""
    if type(part).__module__ != "keras.src.ops.numpy" or type(part).__name__ not in _ELEMENTWISE:
        return False
    for node in part._inbound_nodes:
        rank = len(node.outputs[0].shape)
        for each in [*node.arguments.args, *node.arguments.kwargs.values()]:
            shape: Any = getattr(each, "shape", ())
            if isinstance(each, keras.KerasTensor):
                if len(shape) != rank or shape[0] is not None:
                    return False
            elif len(shape) == rank and shape[0] != 1:
                return False
    return True


def _loss_name(loss: Any) -> str:
    """A loss of Keras's own by its class or function, any other one by its module too."""
    kind = type(loss)
    known = loss.fn if kind.__name__ == "LossFunctionWrapper" else kind
    own = known.__module__.startswith("keras.src.losses")
    return known.__name__ if own else f"{known.__module__}.{known.__name__}"


def _ignores(loss: Any) -> bool:
    """A loss that leaves a class out counts what remains over the whole batch."""
    return getattr(loss, "ignore_class", None) is not None
