"""The only file that knows Keras's internals; version differences live here and nowhere else.

`check` runs once, before the first strategy exists: it compares what is used below with what the
installed Keras has, so that a Keras that moved something is refused by name instead of trained wrong.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from phalanx import replica_step
from phalanx.errors import EngineError, ScopeError, message
from phalanx.host import env

_backend = env.read("KERAS_BACKEND") or "jax"
if "keras" in sys.modules and sys.modules["keras"].config.backend() != "jax":
    _backend = sys.modules["keras"].config.backend()
if _backend != "jax":
    raise ScopeError(
        message(
            "Phalanx trains Keras models on the JAX backend.",
            f"Keras runs, or is told to run, on the {_backend!r} backend (KERAS_BACKEND)",
            "export KERAS_BACKEND=jax   # or: import phalanx before keras",
        )
    )

import keras  # noqa: E402
from keras.src import backend as keras_backend  # noqa: E402
from keras.src.backend.jax.trainer import JAXTrainer  # noqa: E402
from keras.src.distribution import distribution_lib  # noqa: E402
from keras.src.trainers import data_adapters  # noqa: E402
from keras.src.trainers import trainer as base_trainer  # noqa: E402
from keras.src.trainers.data_adapters import data_adapter_utils  # noqa: E402

PARTS = ("trainable", "non_trainable", "optimizer", "metrics")
"""The suitcase: the four lists of arrays that a Keras training step carries."""

ROUTED = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")

_SIGNATURES = {
    "fit": "x y batch_size epochs verbose callbacks validation_split validation_data shuffle class_weight "
    "sample_weight initial_epoch steps_per_epoch validation_steps validation_batch_size validation_freq",
    "evaluate": "x y batch_size verbose sample_weight steps callbacks return_dict kwargs",
    "predict": "x batch_size verbose steps callbacks",
    "train_on_batch": "x y sample_weight class_weight return_dict",
    "test_on_batch": "x y sample_weight return_dict",
    "predict_on_batch": "x",
    "train_step": "state data",
    "test_step": "state data",
    "predict_step": "state data",
    "compute_loss_and_updates": "trainable_variables non_trainable_variables metrics_variables x y "
    "sample_weight training optimizer_variables",
    "_update_metrics_variables": "metrics_variables unscaled_loss x y y_pred sample_weight",
    "_symbolic_build": "iterator data_batch",
    "jax_state_sync": "",
    "_get_metrics_result_or_logs": "logs",
    "_flatten_metrics_in_order": "logs",
    "_should_eval": "epoch validation_freq",
    "_assert_compile_called": "method_name",
}

Tensor = keras_backend.KerasTensor
Distribution = distribution_lib.Distribution
DeviceMesh = keras.distribution.DeviceMesh
TensorLayout = keras.distribution.TensorLayout
Model = keras.Model


def check() -> None:
    """Refuse a Keras whose internals are not those that this file was written for.

    Raises:
        EngineError: Naming what is missing or different.
    """
    wrong = [
        f"{name}({', '.join(_parameters(name)) or 'missing'})"
        for name, wanted in _SIGNATURES.items()
        if _parameters(name) != wanted.split()
    ]
    if keras.config.is_nnx_enabled():
        wrong.append("keras.config.enable_nnx() is on")
    if wrong:
        raise EngineError(
            message(
                "Phalanx 0.1 understands Keras 3.15 on its JAX backend, without NNX.",
                f"Keras {keras.__version__}: {'; '.join(wrong)}",
                'pip install "keras>=3.15,<3.16"',
            )
        )


@functools.cache
def install(hooks: Hooks) -> None:
    """Route Keras's model methods through `hooks`, once per process.

    Models without a strategy keep Keras's own methods to the letter.
    """
    check()
    for name in ROUTED:
        setattr(JAXTrainer, name, _routed(name, getattr(JAXTrainer, name), hooks))
    JAXTrainer.__init__ = _followed(JAXTrainer.__init__, hooks.created)
    # On the base class, where Keras looks to see whether a model overrides compile.
    base_trainer.Trainer.compile = _followed(base_trainer.Trainer.compile, hooks.compiled)


class Hooks:
    """What the rooms above do with a model; they hand it down, so that this door imports none of them.

    Args:
        route: `(model, method name) -> our method or None` for Keras's own.
        created: Called with each new model.
        compiled: Called with each model after `compile`.
    """

    def __init__(
        self,
        route: Callable[[Model, str], Callable[..., Any] | None],
        created: Callable[[Model], None],
        compiled: Callable[[Model], None],
    ) -> None:
        self.route, self.created, self.compiled = route, created, compiled


def _routed(name: str, original: Callable[..., Any], hooks: Hooks) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(model: Model, *args: Any, **kwargs: Any) -> Any:
        ours = hooks.route(model, name)
        return original(model, *args, **kwargs) if ours is None else ours(*args, **kwargs)

    return method


def _followed(original: Callable[..., Any], then: Callable[[Model], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(model: Model, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        then(model)

    return method


def _parameters(name: str) -> list[str]:
    method = getattr(JAXTrainer, name, None)
    return [] if method is None else [p for p in inspect.signature(method).parameters if p != "self"]


# ------------------------------------------------------------------------------- distribution


def current_distribution() -> Distribution | None:
    """The distribution that new variables follow."""
    return distribution_lib.distribution()


def set_distribution(distribution: Distribution | None) -> None:
    """Make new variables follow a distribution."""
    distribution_lib.set_distribution(distribution)


# ------------------------------------------------------------------------------------ notes


def note(model: Model, name: str, value: Any) -> None:
    """Pin a value of ours to a model, past Keras's tracking, so that no save or config sees it."""
    object.__setattr__(model, f"_phalanx_{name}", value)


def noted(model: Model, name: str) -> Any:
    """Read a value pinned by `note`; None if there is none."""
    return model.__dict__.get(f"_phalanx_{name}")


# -------------------------------------------------------------------------------- the suitcase


def variables_of(model: Model, parts: tuple[str, ...] = PARTS) -> list[list[Any]]:
    """The Keras variables of each part, in the order in which steps carry them."""
    optimizer = getattr(model, "optimizer", None)
    lists = {
        "trainable": lambda: model.trainable_variables,
        "non_trainable": lambda: model.non_trainable_variables,
        "optimizer": lambda: [] if optimizer is None else optimizer.variables,
        "metrics": lambda: model.metrics_variables,
    }
    return [lists[part]() for part in parts]


def take(model: Model, parts: tuple[str, ...]) -> tuple[list[Any], ...]:
    """Take the arrays out of the model's variables, for a loop that will donate them to its steps."""
    variables = variables_of(model, parts)
    state = tuple([variable.value for variable in part] for part in variables)
    seen: set[int] = set()
    for values in state:
        for i, value in enumerate(values):
            if id(value) in seen:  # two variables, one array (weights after EMA): a step donates each once
                values[i] = value.copy()
            seen.add(id(value))
    lend(model, parts, state)
    for part in variables:
        for variable in part:
            variable._value = None
    return state


def lend(model: Model, parts: tuple[str, ...], state: Any) -> None:
    """Let callbacks that touch the model find its newest state (they call Keras's own sync)."""
    # Past Keras's attribute tracking, which would walk the whole state at every step.
    model.__dict__["_jax_state"] = {f"{part}_variables": v for part, v in zip(parts, state, strict=True)}
    model.__dict__["_jax_state_synced"] = False


def give_back(model: Model) -> None:
    """Put the newest arrays back into the model's variables."""
    model.jax_state_sync()


def is_home(model: Model) -> bool:
    """True if the variables hold the newest state, for instance because a callback asked for it."""
    return bool(model._jax_state_synced)


def begin(model: Model) -> None:
    """Say that a loop starts and the variables hold the newest state."""
    model.__dict__["_jax_state_synced"] = True


def end(model: Model) -> None:
    """Put the state back and forget the loan."""
    model.jax_state_sync()
    model.__dict__["_jax_state"] = None


def raw_value(variable: Any) -> Any:
    """The array in a variable, whatever scope is active; None if it has none."""
    return variable._value


def move(variable: Any, value: Any, sharding: Any) -> None:
    """Give a variable a new home; later assignments follow it there."""
    variable._layout = sharding
    variable._value = value


# ------------------------------------------------------------------------------ build, logs, data


def check_compiled(model: Model, method: str) -> None:
    """Refuse a model that was not compiled, with Keras's own words."""
    model._assert_compile_called(method)


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


def replica_parts(model: Model) -> replica_step.Parts:
    """A model's own training step, taken apart for the replica view."""

    def loss(trainable: Any, non_trainable: Any, metrics: Any, optimizer: Any, batch: Any) -> Any:
        x, y, sample_weight = unpack(batch)
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


def needs_build(model: Model) -> bool:
    """True if layers, metrics, loss or optimizer still wait for a first batch."""
    return (
        not all(layer.built for layer in model._flatten_layers())
        or (model._compile_metrics is not None and not model._compile_metrics.built)
        or (model._compile_loss is not None and not model._compile_loss.built)
    )


def layers_built(model: Model) -> bool:
    """True if every layer has its variables."""
    return all(layer.built for layer in model._flatten_layers())


def build(model: Model, batch: Any) -> None:
    """Create all variables that are still missing, from the shapes of a batch (or None if none are)."""
    model._symbolic_build(data_batch=batch)


def build_for_predict(model: Model, x: Any) -> None:
    """Create the layers' variables by one stateless call, as Keras's `predict` does."""
    with keras_backend.StatelessScope():
        model(x)


def compiles(model: Model) -> bool:
    """True if steps shall be jitted."""
    return bool(model.jit_compile) and not model.run_eagerly


def reset_names_and_seed(seed: int) -> None:
    """Start names anew and seed everything random, so that two builds of a model are twins."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(seed)


def learning_rate(model: Model) -> float | None:
    """The fixed learning rate, or None for a schedule."""
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(optimizer, "_learning_rate", None)
    return float(rate.value) if isinstance(rate, keras.Variable) else None


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
        keras.src.utils.is_default(getattr(callback, name)) for callback in callbacks.callbacks for name in names
    )


def release(callbacks: Any) -> None:
    """End the thread of a callback list whose loop did not reach its end."""
    executor, callbacks._executor = callbacks._executor, None
    if executor is not None:
        executor.shutdown(wait=True, cancel_futures=True)


def adapter(**data: Any) -> Any:
    """Keras's own reader for any kind of input."""
    return data_adapters.get_data_adapter(**data)


def can_shuffle(*data: Any) -> bool:
    """True for arrays and finite PyDatasets, whose order is Keras's to choose."""
    if isinstance(data[0], keras.utils.PyDataset):
        return data[0].num_batches is not None
    return bool(data_adapters.array_data_adapter.can_convert_arrays(data))


def host_batches(adapter: Any) -> Iterator[Any]:
    """Batches of an adapter as NumPy (or sparse) arrays, from its start."""
    return iter(adapter.get_jax_iterator())


def is_generator(adapter: Any) -> bool:
    """True for data that can be read only once."""
    return isinstance(adapter, data_adapters.GeneratorDataAdapter)


def is_array(adapter: Any) -> bool:
    """True for data whose rows Keras slices itself."""
    return isinstance(adapter, data_adapters.ArrayDataAdapter)


def as_host(batch: Any) -> Any:
    """A batch of arrays, lists of numbers or frames as arrays that can be placed."""
    return next(data_adapter_utils.get_jax_iterator([batch]))


def unpack(batch: Any) -> tuple[Any, Any, Any]:
    """A batch as `(x, y, sample_weight)`, with None for what is missing."""
    return data_adapter_utils.unpack_x_y_sample_weight(batch)


def class_weights(y: Any, weights: dict[int, float]) -> Any:
    """Weights per row from weights per class."""
    return data_adapter_utils.class_weight_to_sample_weights(y, weights)


def split_validation(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """Cut the last `fraction` of the rows off as validation data."""
    return data_adapters.array_data_adapter.array_slicing.train_validation_split(
        arrays, validation_split=fraction
    )


def capped(epochs: int, steps: int | None) -> tuple[int, int | None]:
    """Apply the caps of `keras.config.set_max_epochs` and `set_max_steps_per_epoch`."""
    most_epochs, most_steps = keras.config.max_epochs(), keras.config.max_steps_per_epoch()
    if most_epochs:
        epochs = min(epochs, most_epochs)
    if most_steps:
        steps = most_steps if not steps else min(steps, most_steps)
    return epochs, steps
