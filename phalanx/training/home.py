"""What Phalanx remembers of a model: its strategy and its compiled steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax

from phalanx import finite_step, flat, replica_step, step
from phalanx.data.sharding import Sharding
from phalanx.engine import keras as engine
from phalanx.engine.arrays import Placement
from phalanx.engine.runtime import Exchange
from phalanx.errors import ScopeError, UnsupportedError, message
from phalanx.host.interrupts import held
from phalanx.precision import Precision
from phalanx.training.skips import Counted


class Strategy(Protocol):
    """What the loops need to know of a strategy."""

    placement: Placement
    view: str
    host_only: tuple[str, ...]
    in_flight: int
    exchange: Exchange | None
    travel: dict[str, flat.Travel]
    is_chief: bool
    precision: Precision

    def read(self, name: str, sharding: Sharding) -> None:
        """Note who reads what."""


@dataclass
class Home:
    """A model's strategy and the steps compiled for it.

    Args:
        strategy: Where the model trains.
        steps: Compiled steps by kind and number of variables.
        left: Arrays that the last loop of several workers left in the variables, by the variable's id.
        checked: True once the precision of the model's outputs was looked at.
    """

    strategy: Strategy
    steps: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    left: dict[int, Any] = field(default_factory=dict)
    checked: bool = False

    def __deepcopy__(self, memo: Any) -> Home:
        return Home(self.strategy)


def settle(model: engine.Model, strategy: Strategy) -> None:
    """Remember a model's strategy; steps compiled for another one, or before `compile`, are dropped."""
    engine.note(model, "home", Home(strategy))


def home_of(model: engine.Model) -> Home | None:
    """The remembered home of a model, or None."""
    return engine.noted(model, "home")


def adopt(model: engine.Model, strategy: Strategy) -> None:
    """Move every variable that is not yet on the strategy's replicas there, values kept, all or none.

    Args:
        model: A model whose variables may have been made before or outside the scope.
        strategy: Where they belong.

    Raises:
        ScopeError: Values of some variables are gone; none is moved then.
    """
    placement = strategy.placement
    every = _every(model)
    strays = [v for v in every if not placement.holds(engine.raw_value(v))]
    lost = [v.path for v in strays if _is_lost(engine.raw_value(v))]
    if lost:
        raise ScopeError(
            message(
                "Variables can be moved onto the replicas only while they have values.",
                f"{len(lost)} variables have none, first: {', '.join(lost[:5])}; "
                "a step that failed, or another model that was given their arrays, has used them up",
                'model.load_weights("last.weights.h5")   # or build the model again',
            )
        )
    moved = placement.replicate([engine.raw_value(v) for v in strays])
    with held():  # all or none
        for variable, value in zip(strays, moved, strict=True):
            engine.move(variable, value, placement.whole)


def go_home(model: engine.Model) -> None:
    """After a loop of several workers: give the variables this worker's own copies back.

    Between loops they are ordinary arrays: saving, reading or calling the model needs no other worker.
    """
    home = home_of(model)
    if home is None or home.strategy.placement.alone:
        return
    placement = home.strategy.placement
    home.left = {}
    with held():  # all or none
        for variable in _every(model):
            value = engine.raw_value(variable)
            if placement.holds(value):
                engine.move(variable, placement.own_copy(value), None)
            home.left[id(variable)] = engine.raw_value(variable)


def changed(model: engine.Model, home: Home) -> bool:
    """True if a variable is new, or was given another value since the last loop left it."""
    values = ((id(v), engine.raw_value(v)) for v in _every(model))
    return any(
        home.left.get(i) is not value and not home.strategy.placement.holds(value) for i, value in values
    )


def _every(model: engine.Model) -> list[Any]:
    return list({id(v): v for part in engine.variables_of(model) for v in part}.values())


def _is_lost(value: Any) -> bool:
    return value is None or (isinstance(value, jax.Array) and value.is_deleted())


def running(model: engine.Model, home: Home, kind: str, parts: tuple[str, ...]) -> step.Step:
    """The step of a kind, as one loop runs it.

    Args:
        model: The Keras model.
        home: Its strategy and steps.
        kind: `"train"`, `"test"`, `"predict"`, or `"predict own"` for outputs that stay where their rows are.
        parts: The parts of the state that the step carries.

    Returns:
        `(state, placed batch, true rows) -> (logs or outputs, new state)`; it counts the steps that a loss
        scale skips, from none.
    """
    made = compiled(model, home, kind, parts)
    if kind != "train" or engine.scaling(model) is None:
        return made
    return Counted(made, home.strategy.placement.replicate(finite_step.no_counts()))


def compiled(model: engine.Model, home: Home, kind: str, parts: tuple[str, ...]) -> Callable[..., Any]:
    """The program of a step, compiled once per set of variables (and once more per size of remainder).

    Args:
        model: The Keras model.
        home: Its strategy and steps.
        kind: `"train"`, `"test"`, `"predict"`, or `"predict own"` for outputs that stay where their rows are.
        parts: The parts of the state that the step carries.

    Returns:
        `(state, placed batch, true rows) -> (logs or outputs, new state)`; for training with a loss scale a
        `finite_step.CountedStep`.
    """
    sizes = tuple(len(part) for part in engine.variables_of(model, parts))
    key = (kind, sizes)
    if key not in home.steps:
        home.steps[key] = _make(model, home.strategy, kind, sizes)
    return home.steps[key]


def travels(model: engine.Model, strategy: Strategy) -> flat.Travel:
    """How the gradients of a model in the global view travel; the strategy's report shows it."""
    if strategy.placement.alone:
        return flat.Travel(False, "all replicas are in one process")
    chosen = flat.decide(engine.crossing(model))
    strategy.travel[model.name] = chosen
    return chosen


def _make(model: engine.Model, strategy: Strategy, kind: str, sizes: tuple[int, ...]) -> Callable[..., Any]:
    own = engine.own_function(model, kind.split()[0])
    if own:
        raise UnsupportedError(
            message(
                "Phalanx compiles a model's steps itself; what a step does is for train_step and its kin.",
                f"{type(model).__name__}.{own} is overridden",
                f"def {kind}_step(self, state, data): ...   # instead of {own}",
            )
        )
    whole = strategy.placement.whole
    run: Callable[..., Any]
    results = None if strategy.placement.alone else whole  # what every worker can read
    if kind == "predict":
        run = step.predict_step(model.predict_step, whole)
    elif kind == "predict own":
        run = step.predict_step(model.predict_step, whole, own=True)
        results = strategy.placement.rows
    elif strategy.view == "replica" and kind == "train":
        why = engine.replica_view_refusal(model)
        if why:
            raise UnsupportedError(
                message(
                    "The replica view needs Keras's own train_step, and losses that all average or all sum.",
                    why,
                    'phalanx.MirroredStrategy(view="global")   # exact for every step',
                )
            )
        strategy.travel[model.name] = flat.Travel(True, "the replica view")
        run = replica_step.train_step(engine.replica_parts(model), strategy.placement.mesh)
    elif kind == "train" and travels(model, strategy).flat:
        run = replica_step.train_step(engine.replica_parts(model, row_by_row=True), strategy.placement.mesh)
    else:
        run = step.update_step(model.train_step if kind == "train" else model.test_step, whole)
    state = tuple([whole] * size for size in sizes)
    scaling = engine.scaling(model) if kind == "train" else None
    if scaling is not None:
        run = finite_step.guard(engine.followed(model, run), scaling)
        if engine.compiles(model):
            return jax.jit(run, static_argnums=3, donate_argnums=0, out_shardings=(results, state, whole))
    if not engine.compiles(model):
        if not strategy.placement.alone:
            raise UnsupportedError(
                message(
                    "Several workers run compiled steps.",
                    f"{model.name!r} was compiled with run_eagerly=True or jit_compile=False",
                    "model.compile(...)   # or phalanx.OneDeviceStrategy() to debug",
                )
            )
        return run
    return jax.jit(run, static_argnums=2, donate_argnums=0, out_shardings=(results, state))
