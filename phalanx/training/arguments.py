"""The plain arguments of `fit`: refused before anything happens, in three parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from phalanx.engine import keras as engine
from phalanx.errors import SettingError, message, warn


def check_fit(
    *,
    epochs: Any,
    initial_epoch: Any,
    validation_split: Any,
    validation_freq: Any,
    validation_batch_size: Any,
    class_weight: Any,
    callbacks: Any,
    shuffle: Any,
) -> None:
    """Refuse arguments of `fit` that cannot mean anything.

    Raises:
        SettingError: Naming the argument and its value.
    """
    for name, value in (("epochs", epochs), ("initial_epoch", initial_epoch)):
        if not _whole(value, 0):
            raise _wrong(f"{name} is a whole number, 0 or more.", name, value, f"fit(x, y, {name}=3)")
    if validation_batch_size is not None and not _whole(validation_batch_size, 1):
        raise _wrong(
            "validation_batch_size is a whole number, 1 or more.",
            "validation_batch_size",
            validation_batch_size,
            "fit(x, y, validation_batch_size=64)",
        )
    number = isinstance(validation_split, (int, float)) and not isinstance(validation_split, bool)
    if validation_split is not None and not (number and 0 <= validation_split < 1):
        raise _wrong(
            "validation_split is a part of the rows: 0 or more, and under 1.",
            "validation_split",
            validation_split,
            "fit(x, y, validation_split=0.2)",
        )
    listed = isinstance(validation_freq, Collection) and not isinstance(validation_freq, (str, bytes))
    if not listed and not _whole(validation_freq, 1):
        raise _wrong(
            "validation_freq is a whole number of epochs, 1 or more, or a list of epochs.",
            "validation_freq",
            validation_freq,
            "fit(x, y, validation_freq=2)",
        )
    if class_weight is not None and not isinstance(class_weight, Mapping):
        raise _wrong(
            "class_weight is a dict of class and weight.",
            "class_weight",
            class_weight,
            "fit(x, y, class_weight={0: 1.0, 1: 5.0})",
        )
    if shuffle not in (None, True, False):
        raise _wrong("shuffle is True or False.", "shuffle", shuffle, "fit(x, y, shuffle=True)")
    check_callbacks(callbacks)


def warn_without_validation(**given: Any) -> None:
    """Say which arguments about validation are without effect, because there is no validation data."""
    names = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if names:
        warn(
            message(
                "Arguments about validation need validation data.",
                f"{', '.join(names)} without validation_data or validation_split: without effect",
                "fit(x, y, validation_data=(x_val, y_val))",
            )
        )


def check_callbacks(callbacks: Any) -> None:
    """Refuse callbacks that are none.

    Raises:
        SettingError: Naming the first that is no Keras callback.
    """
    if callbacks is None or engine.is_callback_list(callbacks):
        return
    for each in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if not isinstance(each, engine.Callback):
            raise _wrong(
                "callbacks are instances of keras.callbacks.Callback.",
                "callbacks",
                each,
                "fit(x, y, callbacks=[keras.callbacks.EarlyStopping(patience=3)])",
            )


def check_gather(gather: Any) -> None:
    """Refuse a `gather` that is no yes or no.

    Raises:
        SettingError: Naming its value.
    """
    if not isinstance(gather, (bool, np.bool_)):
        raise _wrong("gather is True or False.", "gather", gather, "predict(x, gather=False)")


def _whole(value: Any, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, np.integer)) and int(value) >= least


def _wrong(rule: str, name: str, value: Any, paste: str) -> SettingError:
    return SettingError(message(rule, f"{name}={value!r}", paste))
