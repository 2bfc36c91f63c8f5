"""`model.predict` under a strategy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from phalanx.engine import arrays
from phalanx.engine import keras as engine
from phalanx.errors import DataError, message
from phalanx.training import setup
from phalanx.training.execute import PREDICT, Runner
from phalanx.training.home import Home


def predict(
    model: engine.Model,
    home: Home,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """Predict as Keras's `predict` does: exactly one row out per row in, in order.

    Args:
        model: A Keras model, compiled or not.
        home: Its strategy and compiled steps.
        x: And all others: as in `keras.Model.predict`.

    Returns:
        NumPy arrays in the structure of the model's outputs.
    """
    feed = setup.open_feed(model, home, x, name="prediction data", batch_size=batch_size, steps=steps)
    if not engine.layers_built(model):
        engine.build_for_predict(model, engine.unpack(feed.peek())[0])
    feed.restart()
    setup.begin(model, home, "predict", feed)
    verbose = verbose if home.strategy.is_chief else 0
    callbacks = engine.callback_list(
        callbacks, model, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=feed.num_batches
    )
    model.stop_predicting = False
    outputs: list[Any] = []
    fetched = 0
    try:
        callbacks.on_predict_begin()
        runner = Runner(model, home, "predict", PREDICT)
        engine.begin(model)
        for group in feed.epoch():
            callbacks.on_predict_batch_begin(group.first)
            results = runner.run(group)
            feed.prepare()
            outputs += results
            logs = {"outputs": results[0] if len(results) == 1 else _joined(results)}
            logs |= _joined([batch.host for batch in group.batches])  # columns that stay on the host
            callbacks.on_predict_batch_end(group.last, logs)
            while fetched < len(outputs) - runner.window.depth:  # free the devices as we go
                outputs[fetched] = arrays.to_host(outputs[fetched])
                fetched += 1
            if model.stop_predicting:
                break
        runner.finish()
        callbacks.on_predict_end()
    finally:
        engine.end(model)
        engine.release(callbacks)
    if not outputs:
        raise DataError(
            message(
                "Prediction needs at least one batch; a generator can be read only once.",
                f"{feed.source.name} had no batch left",
                "predict(x)",
            )
        )
    return _joined(outputs)


def _joined(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)
