"""Keras callbacks; each is a few lines and one call into a room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx import noise
from phalanx.engine import keras as engine
from phalanx.training import noise as room


class GradientNoiseScale(engine.Callback):
    """Measure the simple noise scale while training, from the replicas' own gradients.

    Every so many steps the gradients of half of each replica's rows are compared; the two estimates are
    averaged exponentially and their ratio is the noise scale: the batch, in rows, beyond which more rows buy
    few steps. `logs["noise_scale"]` holds it at the end of each epoch (nothing before the estimate is
    positive), and `Recipe.plan(noise_scale=...)` says what it means for a batch.

    On one replica its batch is split in two. In the global view the parts have batch statistics of their
    own.

    Args:
        every: Steps from one look to the next; one costs about half a training step.
        decay: Weight that the average keeps at each look.

    Raises:
        SettingError: `every` or `decay` outside its rule.

    Example:
        >>> import keras, numpy as np, phalanx
        >>> with phalanx.OneDeviceStrategy().scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        >>> noise = phalanx.callbacks.GradientNoiseScale(every=1)
        >>> history = model.fit(x, x[:, :1] + 3, batch_size=16, verbose=0, callbacks=[noise])
        >>> [noise.noise_scale] == history.history["noise_scale"]
        True

    References:
        McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1.
    """

    def __init__(self, every: int = 50, decay: float = 0.95) -> None:
        super().__init__()
        room.check_every(every)
        self.every, self.average = every, noise.Average(decay)
        self._step = 0
        self._pending: room.Look | None = None

    @property
    def noise_scale(self) -> float | None:
        """The noise scale in rows, as measured so far; None while it is not above 0."""
        self._collect()
        return self.average.noise_scale

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a model whose gradients cannot be looked at, before any step."""
        room.check(self.model)

    def before_step(self, measure: Callable[[], room.Look | None]) -> None:
        """Look at the coming step's gradients if it is time; the loop of `fit` calls this."""
        if self._step % self.every == 0:
            self._collect()
            self._pending = measure()
        self._step += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report."""
        scale = self.noise_scale
        if logs is not None and scale is not None:
            logs["noise_scale"] = scale

    def _collect(self) -> None:
        """Read the last look: late, so that training never waits for it."""
        if self._pending is None:
            return
        look, self._pending = self._pending, None
        small, big = map(float, look.squared)
        self.average.add(*noise.estimate(small, big, look.small, look.big))
