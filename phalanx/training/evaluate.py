"""`model.evaluate` under a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.data.feed import Feed
from phalanx.engine import keras as engine
from phalanx.errors import DataError, message
from phalanx.training import setup
from phalanx.training.execute import TEST, Runner
from phalanx.training.home import Home


def evaluate(
    model: engine.Model,
    home: Home,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """Evaluate as Keras's `evaluate` does, every row counted once.

    Args:
        model: A compiled Keras model.
        home: Its strategy and compiled steps.
        x: And all others: as in `keras.Model.evaluate`.

    Returns:
        Loss and metrics, as a number, a list or a dict.
    """
    engine.check_compiled(model, "evaluate")
    feed = setup.open_feed(
        model, home, x, y, sample_weight, name="evaluation data", batch_size=batch_size, steps=steps
    )
    setup.ready(model, home, feed)
    setup.begin(model, home, "evaluate", feed)
    verbose = verbose if home.strategy.is_chief else 0
    callbacks = engine.callback_list(
        callbacks, model, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=feed.num_batches
    )
    try:
        logs = evaluate_feed(model, home, feed, callbacks)
    finally:
        engine.end(model)
        engine.release(callbacks)
    return logs if return_dict else engine.in_order(model, logs)


def evaluate_feed(
    model: engine.Model,
    home: Home,
    feed: Feed,
    callbacks: Any,
    watch: Callable[[Runner], None] | None = None,
) -> dict[str, Any]:
    """Evaluate one pass over a feed, from its start.

    Args:
        model: A compiled and built Keras model.
        home: Its strategy and compiled steps.
        feed: The data.
        callbacks: Keras's callback list.
        watch: Called after each step.

    Returns:
        Loss and metrics by name, as Python numbers.

    Raises:
        DataError: There was no batch.
    """
    feed.rewind()
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    runner = Runner(model, home, "test", TEST)
    engine.begin(model)
    heard = engine.hears_batches(callbacks, "test")
    logs = None
    for group in feed.epoch():
        if heard:
            callbacks.on_test_batch_begin(group.first)
        logs = runner.run(group)[-1]
        feed.prepare()
        if heard:
            callbacks.on_test_batch_end(group.last, logs)
        if watch is not None:
            watch(runner)
        if model.stop_evaluating:
            break
    runner.finish()
    if logs is None:
        raise DataError(
            message(
                "Evaluation needs at least one batch; a generator can be read only once.",
                f"{feed.source.name} had no batch left",
                "evaluate(x, y)   # arrays, a PyDataset or a dataset can be read again each epoch",
            )
        )
    results = engine.as_floats(engine.epoch_logs(model, logs))
    callbacks.on_test_end(results)
    return results
