"""`train_on_batch`, `test_on_batch` and `predict_on_batch` under a strategy."""

from __future__ import annotations

from typing import Any

from phalanx.data import columns
from phalanx.data.feed import Group
from phalanx.engine import arrays
from phalanx.engine import keras as engine
from phalanx.errors import SettingError, message
from phalanx.training import setup
from phalanx.training.execute import PREDICT, TEST, TRAIN, Runner
from phalanx.training.home import Home
from phalanx.training.skips import taken_out


def train_on_batch(
    model: engine.Model,
    home: Home,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: dict[int, float] | None = None,
    return_dict: bool = False,
) -> Any:
    """One update on one global batch, as in `keras.Model.train_on_batch`."""
    engine.check_compiled(model, "train_on_batch")
    setup.check_training(model)
    if class_weight is not None:
        if sample_weight is not None:
            raise SettingError(
                message(
                    "Rows are weighted by sample or by class, not both.",
                    "sample_weight and class_weight",
                    "model.train_on_batch(x, y, class_weight=...)",
                )
            )
        sample_weight = engine.class_weights(y, class_weight)
    logs = _update(model, home, "train", TRAIN, (x, y, sample_weight))
    return logs if return_dict else engine.in_order(model, taken_out(logs)[0])


def test_on_batch(
    model: engine.Model,
    home: Home,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    return_dict: bool = False,
) -> Any:
    """Loss and metrics of one global batch, as in `keras.Model.test_on_batch`."""
    engine.check_compiled(model, "test_on_batch")
    logs = _update(model, home, "test", TEST, (x, y, sample_weight))
    return logs if return_dict else engine.in_order(model, logs)


def predict_on_batch(model: engine.Model, home: Home, x: Any) -> Any:
    """Outputs of one batch, as in `keras.Model.predict_on_batch`."""
    batch, group = _placed(model, home, (x,))
    if not engine.layers_built(model):
        engine.build_for_predict(model, batch[0])
    setup.begin(model, home, "predict_on_batch")
    (outputs,) = _run(model, home, "predict", PREDICT, group)
    return arrays.to_host(outputs)


def _update(model: engine.Model, home: Home, kind: str, parts: tuple[str, ...], batch: Any) -> dict[str, Any]:
    batch, group = _placed(model, home, batch)
    setup.build(model, home, batch)
    setup.begin(model, home, f"{kind}_on_batch")
    model.reset_metrics()
    return engine.as_floats(_run(model, home, kind, parts, group)[0])


def _placed(model: engine.Model, home: Home, batch: Any) -> tuple[Any, Group]:
    strategy = home.strategy
    columns.check_lists(columns.take_host_only(batch, strategy.host_only)[0])
    batch, _ = columns.take_host_only(engine.as_host(batch), strategy.host_only)
    rows = columns.count_rows(batch, "the batch")
    placed = strategy.placement.place(batch, rows, split=engine.compiles(model))
    return batch, Group(0, (placed,))


def _run(model: engine.Model, home: Home, kind: str, parts: tuple[str, ...], group: Group) -> list[Any]:
    engine.begin(model)
    try:
        runner = Runner(model, home, kind, parts)
        results = runner.run(group)
        runner.finish()
    finally:
        engine.end(model)
    return results
