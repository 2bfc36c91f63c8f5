"""Learning rates as Keras schedules, and questions about a user's optimizer."""

from __future__ import annotations

import inspect
from typing import Any

from phalanx.engine.keras.found import keras
from phalanx.scaling import warmup_multiplier

Schedule = keras.optimizers.schedules.LearningRateSchedule
Optimizer = keras.optimizers.Optimizer


@keras.saving.register_keras_serializable(package="phalanx")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A rate or schedule times a factor, warmed up from the unscaled one, counted in optimizer updates.

    Args:
        schedule: A number, or a Keras schedule of the update.
        factor: What it is multiplied by.
        warmup_steps: Updates until the factor holds in full.
        steps_per_update: Batches that are accumulated for one update; Keras counts batches.
    """

    def __init__(self, schedule: Any, factor: float, warmup_steps: int, steps_per_update: int = 1) -> None:
        self.schedule, self.factor = schedule, float(factor)
        self.warmup_steps, self.steps_per_update = int(warmup_steps), int(steps_per_update)

    def __call__(self, step: Any) -> Any:
        update = keras.ops.floor_divide(keras.ops.cast(step, "int32"), self.steps_per_update)
        rate = self.schedule(update) if callable(self.schedule) else self.schedule
        share = 1.0
        if self.warmup_steps and self.factor > 1:
            start = warmup_multiplier(0, self.warmup_steps, self.factor)
            done = keras.ops.minimum(keras.ops.cast(update, "float32") / self.warmup_steps, 1.0)
            share = start + (1 - start) * done
        return keras.ops.cast(rate, "float32") * self.factor * share

    def get_config(self) -> dict[str, Any]:
        schedule = self.schedule
        return {
            "schedule": keras.saving.serialize_keras_object(schedule) if callable(schedule) else schedule,
            "factor": self.factor,
            "warmup_steps": self.warmup_steps,
            "steps_per_update": self.steps_per_update,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledSchedule:
        if isinstance(config["schedule"], dict):
            config = config | {"schedule": keras.saving.deserialize_keras_object(config["schedule"])}
        return cls(**config)


def schedule(rate: Any, factor: float, warmup_steps: int, steps_per_update: int) -> Any:
    """A scaled rate with warmup, as a schedule of Keras's own where Keras has one for it.

    A number that is warmed up is a straight line and then a constant, which Keras's `PolynomialDecay` says
    as well, and Keras's schedules can be scaled by their own arguments: a model saved with them loads where
    Phalanx is not installed. `ScaledSchedule` does the rest.

    Args:
        rate: A number or a Keras schedule.
        factor: What it is multiplied by.
        warmup_steps: Updates until the factor holds in full.
        steps_per_update: Batches that are accumulated for one update.

    Returns:
        A Keras schedule.
    """
    warm = warmup_steps and factor > 1
    if isinstance(rate, Schedule) and not warm and steps_per_update == 1:
        own = _times(rate, factor)
        if own is not None:
            return own
    if isinstance(rate, Schedule) or steps_per_update > 1:
        return ScaledSchedule(rate, factor, warmup_steps, steps_per_update)
    first = rate * factor * warmup_multiplier(0, warmup_steps, factor)
    return keras.optimizers.schedules.PolynomialDecay(first, max(1, warmup_steps), rate * factor, power=1.0)


_BASE_DEFAULTS = {  # of arguments that Keras's classes hand on to their base
    name: parameter.default for name, parameter in inspect.signature(Optimizer.__init__).parameters.items()
}

_RATES = {  # arguments of Keras's schedules that are rates
    "CosineDecay": ("initial_learning_rate", "warmup_target"),
    "CosineDecayRestarts": ("initial_learning_rate",),
    "ExponentialDecay": ("initial_learning_rate",),
    "InverseTimeDecay": ("initial_learning_rate",),
    "PiecewiseConstantDecay": ("values",),
    "PolynomialDecay": ("initial_learning_rate", "end_learning_rate"),
}


def _times(schedule: Any, factor: float) -> Any:
    """A schedule of Keras's own with every rate in it multiplied, or None for a user's class."""
    cls = type(schedule)
    if getattr(keras.optimizers.schedules, cls.__name__, None) is not cls or cls.__name__ not in _RATES:
        return None
    config = schedule.get_config()
    for name in _RATES[cls.__name__]:
        if isinstance(config[name], (list, tuple)):
            config[name] = [each * factor for each in config[name]]
        elif config[name] is not None:
            config[name] *= factor
    return cls.from_config(config)


def is_schedule(rate: Any) -> bool:
    """True for a Keras learning-rate schedule."""
    return isinstance(rate, Schedule)


def optimizer_classes(optimizer: Any) -> list[str]:
    """Names of an optimizer's class and its bases, nearest first; a text stands for itself.

    Args:
        optimizer: A name, a class, an instance, or Keras's loss-scaling wrapper around one.
    """
    if isinstance(optimizer, str):
        return [optimizer]
    cls = _class_of(optimizer)
    return [base.__name__ for base in cls.__mro__ if base is not object] if cls else [repr(optimizer)]


def optimizer_arguments(optimizer: Any, names: tuple[str, ...]) -> dict[str, float]:
    """Values of an optimizer's arguments: its own if it is an instance, else its class's defaults."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner, Optimizer):
        return {name: float(getattr(inner, name)) for name in names}
    cls = _class_of(optimizer)
    if cls is None:
        return {}
    parameters = inspect.signature(cls.__init__).parameters
    return {name: float(parameters[name].default) for name in names if name in parameters}


def optimizer_options(optimizer: Any) -> dict[str, Any]:
    """What an optimizer instance was given that is not its class's default, without its rate and name."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, Optimizer):
        return {}
    defaults = inspect.signature(type(inner).__init__).parameters
    config = inner.get_config()
    return {
        name: value
        for name, value in config.items()
        if name not in ("learning_rate", "name", "loss_scale_factor")
        and not (name in defaults and defaults[name].default == value)
        and not (name not in defaults and value == _BASE_DEFAULTS.get(name))
    }


def is_optimizer(optimizer: Any) -> bool:
    """True for the name, class or instance of a Keras optimizer."""
    return _class_of(optimizer) is not None


def optimizer_rate(optimizer: Any) -> Any:
    """The rate or schedule of an optimizer instance where it is not its class's default; else None."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, Optimizer):
        return None
    rate = inner._learning_rate
    if isinstance(rate, Schedule):
        return rate
    default = inspect.signature(type(inner).__init__).parameters["learning_rate"].default
    value = float(rate.value) if isinstance(rate, keras.Variable) else rate
    return None if callable(value) or abs(value - default) <= 1e-6 * default else value


def _class_of(optimizer: Any) -> Any:
    if isinstance(optimizer, str):
        found = {name.lower(): cls for name, cls in vars(keras.optimizers).items() if isinstance(cls, type)}
        return found.get(optimizer.lower())
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(optimizer, type):
        return optimizer if issubclass(optimizer, Optimizer) else None
    return type(optimizer) if isinstance(optimizer, Optimizer) else None
