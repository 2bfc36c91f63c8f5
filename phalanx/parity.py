"""The proof that a strategy trains to the one-device result, as one call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from phalanx.compare import Difference, Report, compare
from phalanx.data.source import open_source
from phalanx.engine import keras as engine
from phalanx.errors import SettingError, message
from phalanx.strategies.base import Strategy
from phalanx.strategies.one_device import OneDeviceStrategy


def verify(
    build_model: Callable[[], Any],
    x: Any,
    y: Any = None,
    strategy: Strategy | None = None,
    steps: int = 5,
    batch_size: int = 32,
    *,
    seed: int = 0,
) -> Report:
    """Train the same seed on one device and under a strategy, and compare after every step.

    Args:
        build_model: Returns a new, compiled model; called once for each side.
        x: Features `(rows, ...)`: an array or a tree of arrays.
        y: Targets, likewise.
        strategy: The strategy under test.
        steps: Updates to compare, 1 or more; the rows start over at their end, so that a remainder
            of `rows % batch_size` rows is one of the batches.
        batch_size: Global batch.
        seed: Seed of initial weights and of everything random.

    Returns:
        The largest differences of loss, metrics and variables by path; `print` it, or ask `.equal()`.

    Raises:
        SettingError: No strategy, no function that builds compiled models, or a number that is not whole.

    Example:
        >>> import keras, numpy as np, phalanx
        >>> def build():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     return model
        >>> x = np.ones((10, 4), "float32")
        >>> strategy = phalanx.OneDeviceStrategy("cpu:0")
        >>> phalanx.verify(build, x, x[:, :1], strategy, steps=2, batch_size=4).equal()
        True
    """
    if not isinstance(strategy, Strategy):
        raise SettingError(
            message(
                "verify compares a strategy with one device.",
                f"strategy={strategy!r}",
                "phalanx.verify(build_model, x, y, phalanx.MirroredStrategy())",
            )
        )
    if not callable(build_model) or isinstance(build_model, engine.Model):
        raise SettingError(
            message(
                "build_model is a function that returns a new, compiled model each time.",
                f"build_model={build_model!r}",
                "phalanx.verify(build_model, x, y, strategy)   # def build_model(): ...; return model",
            )
        )
    for name, value, least in (("steps", steps, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise SettingError(
                message(
                    f"{name} is a whole number, {least} or more.",
                    f"{name}={value!r}",
                    "phalanx.verify(build_model, x, y, strategy, steps=5, batch_size=32, seed=0)",
                )
            )
    oracle = OneDeviceStrategy(
        strategy.device_names[0], host_only=strategy.host_only, precision=strategy.precision
    )
    left, right = (_build(build_model, each, seed) for each in (oracle, strategy))
    source = open_source(x, y, name="the data to verify with", batch_size=batch_size)
    batches = itertools.chain.from_iterable(source.batches() for _ in itertools.count())
    found: list[Difference] = []
    for step, batch in enumerate(itertools.islice(batches, steps), start=1):
        logs = [model.train_on_batch(*engine.unpack(batch), return_dict=True) for model in (left, right)]
        found += compare(step, "log", *logs)
        found += compare(step, "variable", *(_values(model) for model in (left, right)))
    return Report(oracle=repr(oracle), candidate=repr(strategy), differences=tuple(found))


def _build(build_model: Callable[[], Any], strategy: Strategy, seed: int) -> Any:
    engine.reset_names_and_seed(seed)
    with strategy.scope():
        model = build_model()
    if not isinstance(model, engine.Model) or not model.compiled:
        what = "a model without compile" if isinstance(model, engine.Model) else repr(model)
        raise SettingError(
            message(
                "build_model is a function that returns a new, compiled model each time.",
                f"it returned {what}",
                'model.compile("adam", "mse"); return model   # last lines of build_model',
            )
        )
    return model


def _values(model: Any) -> dict[str, Any]:
    """Every variable by path; equal paths are numbered."""
    values: dict[str, Any] = {}
    for variable in (v for part in engine.variables_of(model) for v in part):
        path, again = variable.path, 2
        while path in values:
            path, again = f"{variable.path} ({again})", again + 1
        values[path] = np.asarray(variable.value)
    return values
