"""`model.predict` under a strategy."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import numpy as np

from phalanx.data.pipeline import PipelineSource
from phalanx.engine import arrays
from phalanx.engine import keras as engine
from phalanx.errors import DataError, message
from phalanx.training import arguments, setup
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
    gather: bool = True,
) -> Any:
    """Predict as Keras's `predict` does: exactly one row out per row in, in order.

    Args:
        model: A Keras model, compiled or not.
        home: Its strategy and compiled steps.
        x: And all others: as in `keras.Model.predict`.
        gather: True gives every worker all rows; False gives each worker those that its replicas computed.

    Returns:
        NumPy arrays in the structure of the model's outputs.

    Raises:
        UnsupportedError: `gather=False` for outputs that have no row for each row, or `gather=True` for
            `host_only` columns of pipelines, of which each worker has its own rows alone.
    """
    arguments.check_gather(gather)
    placement = home.strategy.placement
    own = not gather and not placement.alone
    feed = setup.open_feed(model, home, x, name="prediction data", batch_size=batch_size, steps=steps)
    if not engine.layers_built(model):
        engine.build_for_predict(model, engine.unpack(feed.peek())[0])
    feed.restart()
    if not own and not placement.alone:
        setup.check_host_only(feed)
    setup.begin(model, home, "predict", feed)
    verbose = verbose if home.strategy.is_chief else 0
    callbacks = engine.callback_list(
        callbacks, model, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=feed.num_batches
    )
    model.stop_predicting = False
    outputs: list[Any] = []
    waiting: deque[tuple[Any, tuple[int, ...]]] = deque()  # outputs on the devices, and rows of each replica

    def fetch(results: Any, sizes: tuple[int, ...]) -> Any:
        return placement.own_part(results, sizes) if own else arrays.to_host(results)

    def host_rows(batch: arrays.Placed) -> dict[str, Any]:
        """Columns that stay on the host, of the rows that come out; a pipeline has no others."""
        if not own or isinstance(feed.source, PipelineSource):
            return batch.host
        start, stop = placement.own(batch.rows)
        return {name: column[start:stop] for name, column in batch.host.items()}

    try:
        callbacks.on_predict_begin()
        runner = Runner(model, home, "predict own" if own else "predict", PREDICT)
        engine.begin(model)
        heard = engine.hears_batches(callbacks, "predict")
        for group in feed.epoch():
            callbacks.on_predict_batch_begin(group.first)
            results = runner.run(group)
            feed.prepare()
            done = [(out, batch.sizes) for out, batch in zip(results, group.batches, strict=True)]
            if heard:
                shown = [fetch(*each) for each in done] if own else results
                logs = {"outputs": shown[0] if len(shown) == 1 else _joined(shown)}
                logs |= _joined([host_rows(batch) for batch in group.batches])
                callbacks.on_predict_batch_end(group.last, logs)
            waiting.extend(done)
            while len(waiting) > runner.window.depth:  # free the devices as we go
                outputs.append(fetch(*waiting.popleft()))
            if model.stop_predicting:
                break
        runner.finish()
        outputs += [fetch(*each) for each in waiting]
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
