"""What all strategies share: a Keras `Distribution` that is a mesh, a layout and a view."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from phalanx.data.input_context import InputContext
from phalanx.data.pipeline import Pipeline
from phalanx.data.sharding import Sharding
from phalanx.data.share import numbers
from phalanx.describe import Description, Work
from phalanx.engine import devices as device_door
from phalanx.engine import keras as engine
from phalanx.engine import runtime
from phalanx.engine.arrays import DATA_AXIS, Placement
from phalanx.engine.runtime import Exchange
from phalanx.errors import PhalanxError, ScopeError, SettingError, message, warn
from phalanx.flat import Travel
from phalanx.precision import Precision
from phalanx.strategies import current
from phalanx.training import evaluate, fit, on_batch, predict, setup
from phalanx.training.home import go_home, home_of, settle
from phalanx.world import World

VIEWS = ("global", "replica")

_LOOPS: dict[str, Callable[..., Any]] = {
    "fit": fit.fit,
    "evaluate": evaluate.evaluate,
    "predict": predict.predict,
    "train_on_batch": on_batch.train_on_batch,
    "test_on_batch": on_batch.test_on_batch,
    "predict_on_batch": on_batch.predict_on_batch,
}

_unused: weakref.WeakKeyDictionary[Strategy, None] = weakref.WeakKeyDictionary()  # oldest first
_log = logging.getLogger("phalanx")


class Strategy(engine.Distribution):
    """Base of all strategies; use one of its subclasses.

    Args:
        names: Keras device names, one replica each; None for every local device.
        view: `"global"`: the one-device program over the whole batch. `"replica"`: each replica computes
            its own batch statistics and dropout masks, as in tf.distribute.
        host_only: Keys of dict features that stay on the host, such as string ids.
        precision: What to do about outputs that compute in 16 bits; see `phalanx.Precision`.
        exchange: Where several workers tell each other small values; None for one worker.

    Raises:
        DeviceError: Names that do not fit this machine.
        SettingError: An unknown view, or a setting of another type.
    """

    def __init__(
        self,
        names: Sequence[str] | None,
        *,
        view: str = "global",
        host_only: Sequence[str] = (),
        precision: Precision | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        if view not in VIEWS:
            raise SettingError(
                message(
                    f"A view is one of {', '.join(map(repr, VIEWS))}.",
                    f"view={view!r}",
                    f'phalanx.{type(self).__name__}(view="global")',
                )
            )
        if isinstance(host_only, str):
            raise SettingError(
                message(
                    "host_only is a list of feature names.",
                    f"host_only={host_only!r}",
                    f"phalanx.{type(self).__name__}(host_only=[{host_only!r}])",
                )
            )
        if not isinstance(host_only, Collection) or not all(isinstance(each, str) for each in host_only):
            raise SettingError(
                message(
                    "host_only is a list of feature names.",
                    f"host_only={host_only!r}",
                    f'phalanx.{type(self).__name__}(host_only=["id"])',
                )
            )
        if precision is not None and not isinstance(precision, Precision):
            raise SettingError(
                message(
                    "precision is a phalanx.Precision; the dtypes themselves are Keras's dtype policies.",
                    f"precision={precision!r}",
                    f"phalanx.{type(self).__name__}(precision=phalanx.Precision(strict=True))",
                )
            )
        engine.install(_HOOKS)
        self.exchange = exchange
        found = device_door.find(names) if exchange is None else device_door.of_all_workers()
        self.placement = Placement(found)
        self.view = view
        self.host_only = tuple(host_only)
        self.precision = precision or Precision()
        self.sharding: dict[str, Sharding] = {}
        self.travel: dict[str, Travel] = {}
        self._said = False
        self.in_flight = device_door.steps_in_flight(found)
        self.world = World(
            processes=runtime.processes() if exchange else 1,
            process=runtime.process() if exchange else 0,
            replicas_per_process=len(found) // (runtime.processes() if exchange else 1),
        )
        self.device_names = tuple(map(device_door.name_of, found))
        mesh = engine.DeviceMesh((len(found),), [DATA_AXIS], list(self.device_names))
        super().__init__(mesh, batch_dim_name=DATA_AXIS, auto_shard_dataset=False)
        self._whole = engine.TensorLayout((), mesh)
        _unused[self] = None

    @property
    def num_replicas_in_sync(self) -> int:
        """Model copies whose gradients meet in every step."""
        return self.world.replicas

    @property
    def is_chief(self) -> bool:
        """True on the worker that writes and prints for all; with one worker always."""
        return self.world.process == 0

    @property
    def num_model_replicas(self) -> int:
        """The same number under the name that Keras uses."""
        return self.world.replicas

    @contextlib.contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Make models, optimizers and metrics in here; `fit` may stand outside.

        Raises:
            ScopeError: Another strategy's scope is open.
        """
        current.enter(self)
        try:
            yield self
        finally:
            current.leave()

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: Any = None
    ) -> Pipeline:
        """Give each worker a pipeline of its own, such as its own files, to train on in step with the others.

        The function is called once on each worker. What it returns is batched for one replica: a step takes a
        batch for each replica, `context.get_per_replica_batch_size(global_batch)` rows. Workers that run out
        of data bring no rows to the last steps of an epoch, and every row counts once.

        Args:
            dataset_fn: `InputContext -> dataset`: tf.data, a PyDataset, a DataLoader, grain or a generator.
            options: Accepted for tf.distribute's sake; without effect, with a warning.

        Returns:
            Data for `fit`, `evaluate` and `predict`.

        Raises:
            SettingError: `dataset_fn` is no function.

        References:
            `tf.distribute.Strategy.distribute_datasets_from_function`.
        """
        if not callable(dataset_fn):
            raise SettingError(
                message(
                    "A function makes each worker's pipeline, from an InputContext.",
                    f"dataset_fn={dataset_fn!r}",
                    "strategy.distribute_datasets_from_function(lambda context: make(context))",
                )
            )
        if options is not None:
            warn(
                message(
                    "The pipeline is the function's own; nothing is added to it.",
                    f"options={options!r} is without effect",
                    "strategy.distribute_datasets_from_function(dataset_fn)",
                )
            )
        context = InputContext(
            num_input_pipelines=self.world.processes,
            input_pipeline_id=self.world.process,
            num_replicas_in_sync=self.world.replicas,
        )
        tell = None if self.exchange is None else self.exchange.gather
        return Pipeline(dataset_fn(context), context, self.placement.count, tell)

    def own_rows(self, rows: int, batch_size: int = 32) -> Any:
        """Which rows this worker computes of arrays, as `predict(x, gather=False)` returns them.

        Args:
            rows: Rows of the arrays.
            batch_size: Rows of a global batch.

        Returns:
            Row numbers, a NumPy array; with one worker all of them.

        Example:
            >>> import phalanx
            >>> phalanx.OneDeviceStrategy("cpu:0").own_rows(3).tolist()
            [0, 1, 2]
        """
        return numbers(rows, batch_size, self.placement.own)

    def describe(self, global_batch: int | None = None) -> Description:
        """Devices, replicas, batch and view, as a value that prints as a table.

        Args:
            global_batch: Rows of one step over all replicas, to see its shares.

        Returns:
            The description.
        """
        return Description(
            strategy=type(self).__name__,
            devices=self.device_names,
            world=self.world,
            view=self.view,
            global_batch=global_batch,
        )

    def report(self) -> Work:
        """Rows that each device has trained, evaluated and predicted; who reads what; how gradients travel.

        Returns:
            The counts since the strategy was made, as a value that prints as a table.
        """
        notes = [(name, str(each)) for name, each in self.sharding.items() if self.exchange is not None]
        notes += [(f"gradients of {name}", str(each)) for name, each in self.travel.items()]
        return Work(devices=self.device_names, rows=tuple(self.placement.rows_placed), notes=tuple(notes))

    def read(self, name: str, sharding: Sharding) -> None:
        """Note who reads what, and say once that every worker reads all."""
        self.sharding[name] = sharding
        if sharding.policy == "off" and self.world.processes > 1 and not self._said:
            self._said = True
            if self.is_chief:
                _log.warning(
                    "%s: %s; see 'Several machines' for what is read in parts", name, sharding.reason
                )

    def get_data_layout(self, data_shape: Sequence[int]) -> Any:
        """Batches are split by rows."""
        return engine.TensorLayout((DATA_AXIS, *[None] * (len(data_shape) - 1)), self.device_mesh)

    def get_variable_layout(self, variable: Any) -> Any:
        """Variables lie whole on every replica, unless they carry a layout of their own."""
        given = getattr(variable, "_layout", None)
        if given is None and not self.placement.alone:
            return None  # an ordinary array of this worker until a loop adopts it: building asks nobody else
        return given or self._whole

    def get_tensor_layout(self, path: str) -> None:
        """Values inside the model are left to the compiler."""

    def __deepcopy__(self, memo: Any) -> Strategy:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {', '.join(self.device_names)}, {self.view} view>"

    __str__ = __repr__


def active() -> Strategy | None:
    """The strategy of the open scope, or the one given to `keras.distribution.set_distribution`."""
    found = current.entered() or engine.current_distribution()
    return found if isinstance(found, Strategy) else None


def _remember(model: engine.Model) -> None:
    """A model belongs to the strategy in force when it is made or compiled."""
    current.hold()
    strategy, home = active(), home_of(model)
    if strategy is not None:
        settle(model, strategy)
        _unused.pop(strategy, None)
    elif home is not None:
        settle(model, home.strategy)


def _compiled(model: engine.Model) -> None:
    """Remember, and look at the outputs if they are known already.

    Raises:
        ScopeError: One of our loops trains the model at this moment, with the steps compiled before.
    """
    if current.trains(model):
        raise ScopeError(
            message(
                "A model is compiled before its loop, and not inside it: the loop would go on as it was.",
                f"{model.name!r}.compile(...) inside its own fit, evaluate or predict",
                "model.fit(x, y, epochs=1); model.compile(...); model.fit(x, y, initial_epoch=1, epochs=3)",
            )
        )
    _remember(model)
    home = home_of(model)
    if home is not None:
        setup.check_precision(model, home)


def _route(model: engine.Model, name: str) -> Callable[..., Any] | None:
    """Our loop for a model with a strategy; Keras's own for all others."""
    home = home_of(model)
    strategy = current.entered() if current.in_loop() else active()
    if strategy is not None and (home is None or home.strategy is not strategy):
        settle(model, strategy)
        _unused.pop(strategy, None)
        home = home_of(model)
    if home is None:
        _say_one_device(model, name)
        return None

    def loop(*args: Any, **kwargs: Any) -> Any:
        with current.loop(home.strategy, model) as outermost:
            try:
                return _LOOPS[name](model, home, *args, **kwargs)
            except (ValueError, RuntimeError) as error:  # what a step raises whose other workers are gone
                if home.strategy.exchange is not None and not isinstance(error, PhalanxError):
                    home.strategy.exchange.explain(error)
                raise
            finally:
                if outermost:
                    go_home(model)

    return loop


def _say_one_device(model: engine.Model, name: str) -> None:
    """Tell a user whose strategy was never used that this model trains on one device.

    A log line and not a warning: comparing with a plain model is a right thing to do, too.
    """
    forgotten = [strategy for strategy in _unused if strategy.num_replicas_in_sync > 1]
    if name == "fit" and forgotten:
        _unused.clear()
        _log.warning(
            message(
                "A model trains on the replicas of the strategy in whose scope it was made or compiled.",
                f"{model.name!r} was made outside: fit runs on one device, {forgotten[-1]!r} is unused",
                "with strategy.scope(): model = build_model(); model.compile(...)",
            )
        )


_HOOKS = engine.Hooks(route=_route, created=_remember, compiled=_compiled, plain=current.plain)
