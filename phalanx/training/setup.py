"""What the loops do before their first step: open the data, build, adopt, refuse what cannot work."""

from __future__ import annotations

import math
from typing import Any

from phalanx.data import columns
from phalanx.data.feed import Feed
from phalanx.data.pipeline import Pipeline, PipelineSource
from phalanx.data.source import Source, open_source
from phalanx.engine import keras as engine
from phalanx.errors import DataError, SettingError, UnsupportedError, message, warn
from phalanx.precision import findings, text
from phalanx.training import together
from phalanx.training.home import Home, adopt


def open_feed(
    model: engine.Model,
    home: Home,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    name: str,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str | None = False,
    class_weight: dict[int, float] | None = None,
    host: dict[str, Any] | None = None,
) -> Feed:
    """Open the user's data as batches on the strategy's devices; see `data.source.open_source`."""
    steps = engine.capped_steps(steps)
    strategy = home.strategy
    if isinstance(x, Pipeline):
        _check_pipeline(x, strategy.placement.replicas, name)
    source = open_source(
        x,
        y,
        sample_weight,
        name=name,
        batch_size=batch_size,
        steps=steps,
        shuffle=shuffle,
        class_weight=class_weight,
        host_only=strategy.host_only,
        host=host,
        workers=1 if strategy.exchange is None else len(strategy.exchange.workers),
        own=strategy.placement.own if engine.compiles(model) else None,
    )
    strategy.read(name, source.sharding)
    return Feed(
        source,
        strategy.placement,
        steps=steps,
        group=model.steps_per_execution,
        split=engine.compiles(model),
        host_only=strategy.host_only,
    )


def check_host_only(feed: Feed) -> None:
    """Refuse to gather predictions whose columns on the host cannot be gathered with them.

    Raises:
        UnsupportedError: They come from a pipeline, of which each worker has its own rows alone.
    """
    if isinstance(feed.source, PipelineSource) and feed.host_only:
        raise UnsupportedError(
            message(
                "Columns that stay on the host are not sent to other workers.",
                f"{feed.source.name}: each worker's own pipeline, with host_only={list(feed.host_only)}",
                "model.predict(data, gather=False)   # each worker's own rows, and their columns",
            )
        )


def _check_pipeline(pipeline: Pipeline, replicas: int, name: str) -> None:
    if pipeline.context.num_replicas_in_sync != replicas:
        raise DataError(
            message(
                "A pipeline is read by the replicas that its function was told of.",
                f"{name}: made for {pipeline.context.num_replicas_in_sync}, the model trains on {replicas}",
                "data = strategy.distribute_datasets_from_function(make)   # the strategy of the model",
            )
        )


def ready(model: engine.Model, home: Home, feed: Feed) -> None:
    """Build what waits for a first batch, and start the data anew."""
    check_precision(model, home)  # here also for a model that was compiled under another strategy
    batch = feed.peek() if engine.needs_build(model) or not home.checked else None
    build(model, home, batch)
    feed.restart()


def begin(model: engine.Model, home: Home, what: str, *feeds: Feed | None) -> None:
    """Agree with the other workers, if there are any, and move strays onto the replicas."""
    together.start(model, home, what)
    for feed in feeds:
        if feed is not None:
            together.same_data(home, feed)
    adopt(model, home.strategy)


def look_at(model: engine.Model, feed: Feed, training: Feed, has_targets: bool) -> None:
    """Refuse validation data that cannot be used, before training and not an epoch later.

    Args:
        model: The model, built.
        feed: The validation data.
        training: The training data; what has the shapes of it is not looked at further.
        has_targets: True where training has targets of its own, and validation data without them is a slip.

    Raises:
        DataError: Arrays without targets or of other shapes than the model takes, or a generator whose first
            batch does not fit together.
        ColumnError: A generator whose first batch has a column of strings or objects.
    """
    source = feed.source
    if source.one_shot:
        feed.peek()  # it was read already
    elif isinstance(source, Source) and source.is_array:  # other kinds are not read before their time
        if has_targets and source.lacks_targets:
            raise DataError(
                message(
                    "Validation data has targets, where training data has them.",
                    f"{source.name}: x alone",
                    "fit(x, y, validation_data=(x_val, y_val))",
                )
            )
        _check_fit(model, feed, source, training.source)


def _check_fit(model: engine.Model, feed: Feed, source: Source, training: Any) -> None:
    if isinstance(training, Source) and training.rows == source.rows:
        return
    batch = feed.peek()
    feed.restart()
    found = columns.row_shapes(batch)
    if not engine.compiles(model) or None in found.values():
        return  # steps that run eagerly, and sparse columns, cannot be followed from shapes alone
    why = engine.misfit(model, engine.unpack(batch))
    if why is not None:
        raise DataError(
            message(
                "Validation data has rows of the shapes that the model and its loss take.",
                f"{feed.source.name}: "
                + ", ".join(f"{path} {row}" for path, row in found.items())
                + f": {why}",
                "x_val, y_val = prepare(x_val, y_val)   # as x and y were prepared",
            )
        )


def check_targets(model: engine.Model, feed: Feed) -> None:
    """Refuse arrays of features alone for a model whose loss compares with targets.

    Raises:
        DataError: Naming the loss.
    """
    if isinstance(feed.source, Source) and feed.source.lacks_targets and engine.wants_targets(model):
        raise DataError(
            message(
                "A compiled loss compares outputs with targets.",
                f"{feed.source.name}: x alone, and {model.name!r} was compiled with loss={model.loss!r}",
                "fit(x, y)   # fit(x, x) for an autoencoder; add_loss needs no targets",
            )
        )


def build(model: engine.Model, home: Home, batch: Any) -> None:
    """Create all variables that are still missing, and look at outputs that were not known at `compile`.

    Args:
        model: A compiled Keras model.
        home: Its strategy.
        batch: A host batch, for its shapes; None where all is built.
    """
    engine.build(model, batch)
    check_precision(model, home, None if batch is None else engine.unpack(batch))


def check_precision(model: engine.Model, home: Home, batch: Any = None) -> None:
    """Say once per `compile`, as soon as it can be known, which output or loss runs in 16 bits.

    Args:
        model: A compiled Keras model.
        home: Its strategy.
        batch: `(x, y, sample_weight)` on the host, for a model whose outputs are known only by running it.

    Raises:
        UnsupportedError: There is one, and the strategy's `Precision` is strict.
    """
    heads = None if home.checked else engine.heads(model, batch)
    if heads is None:
        return
    found = findings(heads)
    if found and home.strategy.precision.strict:
        raise UnsupportedError(text(found))
    home.checked = True
    if found:
        warn(text(found))


def check_training(model: engine.Model) -> None:
    """Refuse settings under which training cannot be right.

    Raises:
        SettingError: The learning rate is not a finite number.
    """
    rate = engine.learning_rate(model)
    if rate is not None and not math.isfinite(rate):
        raise SettingError(
            message(
                "A learning rate is a finite number.",
                f"learning_rate={rate} in {type(model.optimizer).__name__}",
                "model.optimizer.learning_rate = 1e-3",
            )
        )
