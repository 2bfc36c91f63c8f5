"""The states of callbacks: what each must remember to go on as if nothing had happened."""

from __future__ import annotations

from typing import Any

from phalanx.engine.keras.found import keras

_REMEMBERED = (
    (keras.callbacks.History, ("epoch", "history")),
    (keras.callbacks.EarlyStopping, ("wait", "stopped_epoch", "best", "best_weights", "best_epoch")),
    (keras.callbacks.ReduceLROnPlateau, ("best", "wait", "cooldown_counter")),
    (keras.callbacks.ModelCheckpoint, ("best", "_batches_seen_since_last_saving", "_last_batch_seen")),
    (
        keras.callbacks.TensorBoard,
        ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
    ),
    (keras.callbacks.SwapEMAWeights, ("_ema_weights_in_model",)),
)


def callback_states(callbacks: Any) -> list[tuple[str, Any]]:
    """Name and state of each callback that has one, in order.

    A callback's own `get_state` comes first; of Keras's classes and those derived from them, the attributes
    that their decisions rest on.
    """
    found = ((type(each).__name__, _state(each)) for each in _members(callbacks))
    return [(name, state) for name, state in found if state is not None]


def set_callback_states(callbacks: Any, states: list[tuple[str, Any]]) -> list[str]:
    """Give callbacks their states back, each by its class's name and its place among those of that name.

    Returns:
        The names of states for which there is no callback.
    """
    left = list(states)
    for callback in _members(callbacks):
        name = type(callback).__name__
        place = next((i for i, (saved, _) in enumerate(left) if saved == name), None)
        if place is not None and _state(callback) is not None:
            _set_state(callback, left.pop(place)[1])
    return [name for name, _ in left]


def keep_files(callbacks: Any) -> None:
    """Let loggers go on in the files of the run that goes on, instead of beginning them anew."""
    for callback in _members(callbacks):
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True


def may_write_weights(callbacks: Any) -> bool:
    """True if a callback may give the model other weights for the time of a validation."""
    return any(
        isinstance(each, keras.callbacks.SwapEMAWeights)
        or (
            not type(each).__module__.startswith(("keras.", "phalanx."))
            and type(each).on_test_begin is not keras.callbacks.Callback.on_test_begin
        )
        for each in _members(callbacks)
    )


def callbacks_with(callbacks: Any, name: str) -> list[Any]:
    """The callbacks of ours that have an attribute of this name."""
    return [each for each in _members(callbacks) if hasattr(each, name)]


def _members(callbacks: Any) -> list[Any]:
    return list(getattr(callbacks, "callbacks", ()))


def _has_own(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _state(callback: Any) -> Any:
    if _has_own(callback):
        return callback.get_state()
    if isinstance(callback, keras.callbacks.CSVLogger):
        file = callback.csv_file
        return {"size": file.tell() if file and not file.closed else 0, "keys": callback.keys}
    names = [name for kind, names in _REMEMBERED if isinstance(callback, kind) for name in names]
    return {name: getattr(callback, name, None) for name in names} or None


def _set_state(callback: Any, state: Any) -> None:
    if _has_own(callback):
        callback.set_state(state)
        return
    if isinstance(callback, keras.callbacks.CSVLogger):
        callback.csv_file.truncate(state["size"])  # rows after the backup are written again
        callback.keys, callback.append_header = state["keys"], not state["size"]
        return
    for name in (name for kind, names in _REMEMBERED if isinstance(callback, kind) for name in names):
        if name in state:
            setattr(callback, name, state[name])
    if isinstance(callback, keras.callbacks.History):
        callback.model.history = callback  # Keras does so at the end of an epoch; there may be none left
