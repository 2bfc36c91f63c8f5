"""Questions about a Keras model, and what Keras does with it between steps: build, logs, callbacks."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from phalanx.engine.keras.found import Model, global_state, keras, keras_backend, keras_tree, rng_utils
from phalanx.errors import warn


def check_compiled(model: Model, method: str) -> None:
    """Refuse a model that was not compiled, with Keras's own words."""
    model._assert_compile_called(method)


def needs_build(model: Model) -> bool:
    """True if layers, metrics, loss or optimizer still wait for a first batch."""
    return (
        not all(layer.built for layer in model._flatten_layers())
        or (model._compile_metrics is not None and not model._compile_metrics.built)
        or (model._compile_loss is not None and not model._compile_loss.built)
    )


def wants_targets(model: Model) -> bool:
    """True for Keras's own training step with a loss for every output, which cannot do without targets."""
    return (
        model.loss is not None
        and model._compile_loss is not None
        and all(
            getattr(type(model), name) is getattr(Model, name)
            for name in ("train_step", "compute_loss", "compute_loss_and_updates")
        )
    )


def own_function(model: Model, kind: str) -> str | None:
    """The name of a model's own `make_train_function` or the like; None where it is Keras's."""
    name = f"make_{kind}_function"
    return None if getattr(type(model), name) is getattr(Model, name) else name


def layers_built(model: Model) -> bool:
    """True if every layer has its variables."""
    return all(layer.built for layer in model._flatten_layers())


def build(model: Model, batch: Any) -> None:
    """Create all variables that are still missing, from the shapes of a batch (or None if none are)."""
    model._symbolic_build(data_batch=batch)


def misfit(model: Model, batch: Any) -> str | None:
    """What Keras says of a batch that the model or its loss cannot take, from shapes alone.

    Args:
        model: A built Keras model.
        batch: `(x, y, sample_weight)` on the host.

    Returns:
        The first line of Keras's error; None for a batch that fits, and for a model with an evaluation step
        of its own, which may do anything with it.
    """
    if type(model).test_step is not Model.test_step:
        return None

    def evaluate(x: Any, y: Any, weights: Any) -> Any:
        outputs = model(x, training=False)
        return model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weights, training=False)

    try:
        keras_backend.compute_output_spec(evaluate, *keras_tree.map_structure(as_symbol, batch))
    except Exception as error:  # layers, losses and the user's own code raise what they like
        return str(error).strip().split("\n", 1)[0] or type(error).__name__
    return None


def as_symbol(column: Any) -> Any:
    """A column's shape and dtype as Keras traces them."""
    if column is None:
        return None
    return keras.KerasTensor(column.shape, keras_backend.standardize_dtype(column.dtype))


def build_optimizer(model: Model) -> None:
    """Create the optimizer's slots where they wait for a first batch and the layers do not."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built and layers_built(model):
        optimizer.build(model.trainable_variables)


def metrics_built(model: Model) -> bool:
    """True if every compiled metric has its variables."""
    return model._compile_metrics is None or bool(model._compile_metrics.built)


def build_for_predict(model: Model, x: Any) -> None:
    """Create the layers' variables by one stateless call, as Keras's `predict` does."""
    with keras_backend.StatelessScope():
        model(x)


def compiles(model: Model) -> bool:
    """True if steps shall be jitted."""
    return bool(model.jit_compile) and not model.run_eagerly


def reset_names_and_seed(seed: int) -> None:
    """Start names anew and seed everything random, so that two builds of a model are twins."""
    policy = keras.config.dtype_policy()
    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy(policy)  # the user's choice, which Keras's clearing forgets
    if "tensorflow" in sys.modules:
        keras.utils.set_random_seed(seed)
        return
    random.seed(seed)  # Keras's own way would load TensorFlow where it is installed
    np.random.seed(seed)
    global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, seed)


def learning_rate(model: Model) -> float | None:
    """The fixed learning rate, or None for a schedule."""
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(optimizer, "_learning_rate", None)
    return float(rate.value) if isinstance(rate, keras.Variable) else None


def set_learning_rate(model: Model, rate: float) -> None:
    """Change a fixed learning rate."""
    model.optimizer.learning_rate = rate


def finish_training(model: Model) -> None:
    """Let the optimizer write final values, such as moving averages, into the weights."""
    if isinstance(model.optimizer, keras.optimizers.Optimizer):
        model.optimizer.finalize_variable_values(model.trainable_weights)


def epoch_logs(model: Model, logs: Any) -> dict[str, Any]:
    """The epoch's results: the model's metrics, or a custom step's last logs."""
    return dict(model._get_metrics_result_or_logs(logs))


def in_order(model: Model, logs: dict[str, Any]) -> Any:
    """Logs as the list (or number) that `evaluate` returns."""
    return model._flatten_metrics_in_order(logs)


def as_floats(logs: Any) -> dict[str, Any]:
    """Logs with Python numbers, nested dicts flattened."""
    return keras.src.utils.python_utils.pythonify_logs(logs)


def callback_list(callbacks: Any, model: Model, **params: Any) -> Any:
    """Keras's own list of callbacks, with history and one progress bar as asked."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(callbacks, model=model, **params)


def is_callback_list(callbacks: Any) -> bool:
    """True for Keras's own list of callbacks."""
    return isinstance(callbacks, keras.callbacks.CallbackList)


def hears_batches(callbacks: Any, kind: str) -> bool:
    """True if any callback does something at the begin or end of a batch; asked before each loop.

    Args:
        callbacks: A Keras callback list.
        kind: `"train"`, `"test"` or `"predict"`.
    """
    if type(callbacks) is not keras.callbacks.CallbackList:
        return True
    names = [f"on_{kind}_batch_begin", f"on_{kind}_batch_end"]
    if kind == "train":
        names += ["on_batch_begin", "on_batch_end"]
    return not all(
        keras.src.utils.is_default(getattr(callback, name))
        for callback in callbacks.callbacks
        for name in names
    )


_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.RemoteMonitor,
)


def for_worker(callbacks: Any, is_chief: bool) -> Any:
    """The callbacks of one worker: those that write files are the chief's, unless they say `all_workers`."""
    if is_chief or callbacks is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    given = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    return [each for each in given if getattr(each, "all_workers", False) or not isinstance(each, _WRITERS)]


def before_step(callbacks: Any) -> list[Any]:
    """What callbacks of ours want to be called with before each step: `callback.before_step(measure)`."""
    heard = (getattr(callback, "before_step", None) for callback in getattr(callbacks, "callbacks", ()))
    return [call for call in heard if call is not None]


def release(callbacks: Any) -> None:
    """End the thread of a callback list whose loop did not reach its end."""
    executor, callbacks._executor = callbacks._executor, None
    if executor is not None:
        executor.shutdown(wait=True, cancel_futures=True)


def capped_epochs(epochs: int) -> int:
    """Apply the cap of `keras.config.set_max_epochs`, and say so as Keras does."""
    most = keras.config.max_epochs()
    if not most or epochs <= most:
        return epochs
    warn(f"Limiting epochs to {most}")
    return int(most)


def capped_steps(steps: int | None) -> int | None:
    """Apply the cap of `keras.config.set_max_steps_per_epoch`, and say so as Keras does."""
    most = keras.config.max_steps_per_epoch()
    if not most or (steps and steps <= most):
        return steps
    warn(f"Limiting steps_per_epoch to {most}")
    return int(most)
