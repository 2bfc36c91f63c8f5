"""`model.fit` under a strategy: read it from top to bottom to follow a batch to the devices."""

from __future__ import annotations

import functools
from typing import Any

from phalanx.data import columns
from phalanx.data.feed import Feed
from phalanx.engine import keras as engine
from phalanx.errors import message, warn
from phalanx.training import arguments, backups, setup, together
from phalanx.training.evaluate import evaluate_feed
from phalanx.training.execute import TRAIN, Runner
from phalanx.training.home import Home
from phalanx.training.moment import Fit
from phalanx.training.no_backups import NoBackups
from phalanx.training.skips import Skips, taken_out


def fit(
    model: engine.Model,
    home: Home,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str | None = None,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: Any = 1,
) -> Any:
    """Train as Keras's `fit` does, on all replicas of the model's strategy.

    Args:
        model: A compiled Keras model.
        home: Its strategy and compiled steps.
        x: And all others: as in `keras.Model.fit`; `batch_size` is the global batch. `shuffle=None` is
            Keras's default: shuffle what can be shuffled, and no word about the rest.

    Returns:
        Keras's `History`.
    """
    engine.check_compiled(model, "fit")
    setup.check_training(model)
    arguments.check_fit(
        epochs=epochs,
        initial_epoch=initial_epoch,
        validation_split=validation_split,
        validation_freq=validation_freq,
        validation_batch_size=validation_batch_size,
        class_weight=class_weight,
        callbacks=callbacks,
        shuffle=shuffle,
    )
    if validation_data is None and not validation_split:
        arguments.warn_without_validation(
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=None if validation_freq == 1 else validation_freq,
        )
    epochs = engine.capped_epochs(epochs)
    host = None
    if validation_split and validation_data is None:
        arrays, host = columns.number_rows((x, y, sample_weight), home.strategy.host_only)
        (x, y, sample_weight), validation_data = engine.split_validation(arrays, validation_split)

    feed = setup.open_feed(
        model,
        home,
        x,
        y,
        sample_weight,
        name="training data",
        batch_size=batch_size,
        steps=steps_per_epoch,
        shuffle=shuffle,
        class_weight=class_weight,
        host=host,
    )
    val_feed = None
    if validation_data is not None:
        val_x, val_y, val_weight = engine.unpack(validation_data)
        val_feed = setup.open_feed(
            model,
            home,
            val_x,
            val_y,
            val_weight,
            name="validation data",
            batch_size=validation_batch_size or batch_size,
            steps=validation_steps,
            host=host,
        )
    setup.check_targets(model, feed)
    setup.ready(model, home, feed)
    if val_feed is not None:
        setup.look_at(model, val_feed, feed, has_targets=y is not None)

    verbose = verbose if home.strategy.is_chief else 0
    callbacks = engine.callback_list(
        engine.for_worker(callbacks, home.strategy.is_chief),
        model,
        add_history=True,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=feed.num_batches,
    )
    model.stop_training = False
    engine.begin(model)
    logs: dict[str, Any] = {}
    skips = Skips()
    try:
        with backups.of(Fit(model, home, callbacks, feed, val_feed, skips)) as kept:
            try:
                callbacks.on_train_begin()  # where Keras's own backup is restored, on the chief
                setup.begin(model, home, "fit", feed, val_feed)
                kept.restore()
                first = kept.first_epoch(model._initial_epoch or initial_epoch, epochs)
                for epoch in together.epochs(home, first, epochs):
                    if not kept.within_epoch():
                        model.reset_metrics()
                    callbacks.on_epoch_begin(epoch)
                    step_logs = train_epoch(model, home, feed, callbacks, skips, kept, epoch)
                    if step_logs is None:
                        _warn_no_data(feed, epoch)
                        break
                    own, added = taken_out(step_logs)
                    logs = own if skips.nothing_finite else engine.epoch_logs(model, own)
                    logs |= added
                    if val_feed is not None and model._should_eval(epoch, validation_freq):
                        watch = kept.trained(epoch, step_logs)
                        val_logs = evaluate_feed(model, home, val_feed, callbacks, watch)
                        logs.update({f"val_{name}": value for name, value in val_logs.items()})
                    callbacks.on_epoch_end(epoch, logs)
                    said = together.end_of_epoch(model, home, kept.word(model))
                    model.stop_training = said.stop
                    kept.epoch_ended(epoch, said)
                    if model.stop_training:
                        break
            finally:  # also after Ctrl-C: the weights are then the newest, averaged where the optimizer does
                engine.end(model)
                if epochs > 0:
                    engine.finish_training(model)
            callbacks.on_train_end(logs=logs)
            kept.done()
    finally:
        engine.release(callbacks)
    return model.history


def train_epoch(
    model: engine.Model,
    home: Home,
    feed: Feed,
    callbacks: Any,
    skips: Skips,
    kept: NoBackups,
    epoch: int,
) -> dict[str, Any] | None:
    """Train one epoch.

    Args:
        model: A compiled and built Keras model.
        home: Its strategy and compiled steps.
        feed: Its training data.
        callbacks: Keras's callback list.
        skips: Watches the loss scale, if the model has one.
        kept: Its backups; the epoch may go on from one.
        epoch: Which epoch it is.

    Returns:
        The last step's logs, or None if there was no batch left to train on.
    """
    skips.begin_epoch()
    runner = Runner(model, home, "train", TRAIN, skips.look)
    engine.begin(model)
    heard, watching = engine.hears_batches(callbacks, "train"), engine.before_step(callbacks)
    logs, pulse = kept.enter(runner), together.Pulse(home.strategy.exchange, epoch)
    for group in () if kept.over else feed.epoch():
        if heard:
            callbacks.on_train_batch_begin(group.first)
        for watch in watching:
            watch(functools.partial(runner.measure_noise, group.batches[0]))
        logs = runner.run(group)[-1]
        feed.prepare()  # read and place the next batches while the devices work on these
        if heard:
            callbacks.on_train_batch_end(group.last, logs)
        kept.count(len(group.batches))
        said = pulse.look(kept.word(model), kept.sure())
        model.stop_training = model.stop_training or said.stop
        kept.after_step(epoch, logs, runner, said)
        if said.stop:
            break
    runner.finish()
    return logs


def _warn_no_data(feed: Feed, epoch: int) -> None:
    warn(
        message(
            "Each epoch needs data; a generator can be read only once.",
            f"{feed.source.name} had no batch left for epoch {epoch + 1}; training ends here",
            "fit(endless_generator, steps_per_epoch=100, epochs=3)   # or pass a PyDataset",
        )
    )
