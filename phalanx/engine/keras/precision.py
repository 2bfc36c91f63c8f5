"""The dtypes of a Keras model's outputs and losses, as the facts that `phalanx.precision` judges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from phalanx.engine.keras.found import Model, keras, keras_backend, keras_tree
from phalanx.engine.keras.model import as_symbol
from phalanx.precision import SHORT, Head

_PASSING = (
    "Activation",
    "Identity",
    "Reshape",
    "Flatten",
    "Permute",
    "Dropout",
    "Cast",
    "Squeeze",
    "ExpandDims",
)
"""Operations whose output says what their input said, in another shape or dtype."""

_NORMALISING = (
    "categoricalcrossentropy",
    "sparsecategoricalcrossentropy",
    "categoricalfocalcrossentropy",
    "crossentropy",
    "ce",
)
"""Losses that divide probabilities by their sum, in small letters without underscores."""


def heads(model: Model, batch: Any = None) -> list[Head] | None:
    """The outputs of a compiled model on their way to its losses.

    Args:
        model: A compiled Keras model.
        batch: `(x, y, sample_weight)` on the host, for a model whose outputs are known only by running it.

    Returns:
        One head per output that has a loss (or per output, if the model was compiled without one); none for a
        model without 16-bit layers; None if the outputs are not known yet.
    """
    if not _is_short(model):
        return []
    graph = _graph(model)
    if graph is not None:
        ends = [
            (path, _end(tensor), tensor.dtype)
            for path, tensor in keras_tree.flatten_with_path(graph._outputs_struct)
        ]
    elif model._compile_loss is None:
        return []  # what the model's own step does with it is not known: it may not even be called
    elif batch is None or not all(layer.built for layer in model._flatten_layers()):
        return None
    else:
        ends = _traced(model, batch)
    names = getattr(model, "output_names", None) or [None] * len(ends)
    found = []
    for index, (path, maker, dtype) in enumerate(ends):
        loss = _loss_at(model, path, index, names[index], len(ends))
        if loss is not None or model._compile_loss is None:
            found.append(_head(model, index, maker, dtype, loss))
    return found


def _is_short(model: Model) -> bool:
    losses = [] if model._compile_loss is None else keras_tree.flatten(model._compile_loss._user_loss)
    computing = [_loss_dtype(loss) for loss in losses if loss is not None]
    return any(dtype in SHORT for dtype in computing) or any(
        layer.compute_dtype in SHORT for layer in model._flatten_layers()
    )


def _head(model: Model, index: int, maker: Any, dtype: Any, loss: Any) -> Head:
    dtype = keras_backend.standardize_dtype(dtype)
    maker = _unwrapped(maker)
    return Head(
        layer=f"output {index} of {model.name}" if maker is None else maker.name,
        kind="operation" if maker is None else type(maker).__name__,
        activation=None if maker is None else _activation(maker),
        computes=getattr(maker, "compute_dtype", None) or dtype,
        gives=dtype,
        loss=None if loss is None else _loss_name(loss),
        from_logits=_from_logits(loss),
        normalises=loss is not None and _loss_name(loss).replace("_", "").lower() in _NORMALISING,
        loss_computes="float32" if loss is None else _loss_dtype(loss),
    )


# ---- layers


def _graph(model: Model) -> Any:
    """The graph of symbolic tensors that a model is; None for a subclassed one, or one without inputs yet."""
    graph = getattr(model, "_functional", None) or model
    return graph if hasattr(graph, "_outputs_struct") else None


def _end(tensor: Any) -> Any:
    """The operation that gave a symbolic output its meaning: through nested models and mere casts."""
    while True:
        operation, node, index = tensor._keras_history
        graph = _graph(operation) if isinstance(operation, Model) else None
        if graph is not None:
            tensor = graph.outputs[index]
            continue
        if operation is None or not _passes(operation):
            return operation
        before = operation._inbound_nodes[node].input_tensors
        if len(before) != 1 or before[0]._keras_history.operation is None:
            return operation
        tensor = before[0]


def _passes(operation: Any) -> bool:
    return type(operation).__name__ in _PASSING and _activation(operation) in (None, "linear")


def _unwrapped(layer: Any) -> Any:
    """The layer inside wrappers such as `TimeDistributed`."""
    while isinstance(layer, keras.layers.Wrapper):
        layer = layer.layer
    return layer


def _activation(operation: Any) -> str | None:
    """The name of what a layer or operation does last, if it can be told."""
    if isinstance(operation, keras.layers.RNN):
        return None  # its activation is inside the cell
    name = type(operation).__name__.lower()
    if name in ("softmax", "sigmoid"):
        return name
    activation = getattr(operation, "activation", None)
    if activation is None:
        return None
    return str(getattr(activation, "__name__", type(activation).__name__)).lower()


def _traced(model: Model, batch: Any) -> list[tuple[tuple[Any, ...], Any, Any]]:
    """Path, layer and dtype of each output, by running the model on shapes alone."""
    x = keras_tree.map_structure(as_symbol, batch[0])
    ends: list[tuple[tuple[Any, ...], Any, Any]] = []

    def forward(x: Any) -> Any:
        ends.clear()
        with _watched(model) as seen:
            outputs = model(x)
        for path, value in keras_tree.flatten_with_path(outputs):
            ends.append((path, _last_meant(seen, value), value.dtype))
        return outputs

    keras_backend.compute_output_spec(forward, x)
    return ends


@contextlib.contextmanager
def _watched(model: Model) -> Iterator[list[tuple[Any, list[Any]]]]:
    """Each layer that is called inside, with its outputs, in the order in which they end."""
    seen: list[tuple[Any, list[Any]]] = []

    def watch(layer: Any) -> None:
        call = layer.call

        def watched(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            seen.append((layer, keras_tree.flatten(outputs)))
            return outputs

        object.__setattr__(layer, "call", watched)

    layers = [layer for layer in model._flatten_layers(include_self=False) if "call" not in layer.__dict__]
    try:
        for layer in layers:
            watch(layer)
        yield seen
    finally:
        for layer in layers:
            object.__delattr__(layer, "call")


def _last_meant(seen: list[tuple[Any, list[Any]]], value: Any) -> Any:
    """The first layer that returned this very value; before a mere cast, the layer that ended before it."""
    for i, (layer, outputs) in enumerate(seen):
        if any(output is value for output in outputs):
            return seen[i - 1][0] if i and _passes(layer) else layer
    return None


# ---- losses


def _loss_at(model: Model, path: tuple[Any, ...], index: int, name: str | None, count: int) -> Any:
    """The loss of an output, as the user gave it to `compile`; None if it has none."""
    loss = None if model._compile_loss is None else model._compile_loss._user_loss
    for step in (*path, None):
        if isinstance(loss, dict):
            loss = loss.get(step, loss.get(name)) if step in loss or name in loss else None
        elif isinstance(loss, (list, tuple)):
            given = [each for each in loss if each is not None]
            if isinstance(step, int) and step < len(loss):
                loss = loss[step]
            elif len(loss) == count > 1:
                loss = loss[index]
            else:
                loss = given[0] if given else None
    return loss


def _loss_name(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "__name__", type(loss).__name__))


def _loss_dtype(loss: Any) -> str:
    given = loss.dtype if isinstance(loss, keras.losses.Loss) else keras.config.floatx()
    return str(given)


def _from_logits(loss: Any) -> bool:
    options = getattr(loss, "_fn_kwargs", {})
    return bool(getattr(loss, "from_logits", False) or options.get("from_logits", False))
