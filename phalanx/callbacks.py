"""Keras callbacks; each is a few lines and one call into a room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx import noise
from phalanx.checkpoint.rhythm import Rhythm
from phalanx.engine import keras as engine
from phalanx.errors import ScopeError, SettingError, message
from phalanx.host import store
from phalanx.training import noise as room
from phalanx.training.backups import Plan
from phalanx.training.home import home_of


class BackupAndRestore(engine.Callback):
    """Back a `fit` up while it runs, and go on from the newest backup when the script starts again.

    A run that goes on equals one that nothing disturbed, to the bit, on the same number of replicas: weights,
    optimizer slots, random numbers, place and order of the data, `History`, and the states of callbacks
    (Keras's own, and any that has `get_state()` and `set_state(state)`, of numbers, texts, lists, dicts and
    arrays). On other replicas and workers it is equal within rounding. See `docs/assumptions.md`.

    Saving holds training up for one copy of the state to host memory; a thread writes it.

    Args:
        backup_dir: A folder for this run alone; all workers share it.
        save_freq: `"epoch"`, a number of training steps, a `datetime.timedelta`, or `"auto"`: as often as
            loses least time to saving and to work done again.
        keep: How many complete backups stay.
        on_preemption: Save and leave with code 75 after SIGTERM on any worker; a function is asked as well,
            and leaves for any true answer, which is the reason. False leaves SIGTERM alone.
        delete_on_success: Remove the backups when `fit` has come to its end.
        failure_interval: For `"auto"`: seconds or a `timedelta` from one failure to the next; None assumes a
            day.

    Raises:
        SettingError: A setting outside its rule.

    Example:
        >>> import keras, numpy as np, phalanx, tempfile
        >>> with phalanx.OneDeviceStrategy().scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> x = np.zeros((8, 4), "float32")
        >>> backup = phalanx.callbacks.BackupAndRestore(tempfile.mkdtemp(), save_freq=100)
        >>> history = model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[backup])

    References:
        `keras.callbacks.BackupAndRestore`.
    """

    def __init__(
        self,
        backup_dir: Any,
        save_freq: Any = "epoch",
        keep: int = 2,
        on_preemption: bool | Callable[[], Any] = True,
        delete_on_success: bool = True,
        *,
        failure_interval: Any = None,
    ) -> None:
        super().__init__()
        if not str(backup_dir):
            raise SettingError(
                message(
                    "backup_dir is a folder.",
                    f"backup_dir={backup_dir!r}",
                    'phalanx.callbacks.BackupAndRestore("backups/run1")',
                )
            )
        if not isinstance(on_preemption, bool) and not callable(on_preemption):
            raise SettingError(
                message(
                    "on_preemption is True, False, or a function that says whether to leave.",
                    f"on_preemption={on_preemption!r}",
                    "BackupAndRestore(folder, on_preemption=lambda: os.path.exists('/tmp/leave'))",
                )
            )
        self.backup_plan = Plan(
            directory=store.absolute(str(backup_dir)),
            rhythm=Rhythm.of(save_freq, failure_interval),
            keep=keep,
            notice=on_preemption if callable(on_preemption) else None,
            on_preemption=bool(on_preemption),
            delete_on_success=delete_on_success,
        )

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a model that Keras trains by itself; the loop does the rest at its own fixed points."""
        if home_of(self.model) is None:
            raise ScopeError(
                message(
                    "The loop of a strategy writes these backups.",
                    f"{self.model.name!r} was made and compiled outside a scope",
                    "with phalanx.OneDeviceStrategy().scope(): model = build_model()",
                )
            )


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

    def get_state(self) -> dict[str, Any]:
        """What a run that goes on elsewhere must know."""
        self._collect()
        return {"step": self._step, "gradient": self.average.gradient, "trace": self.average.trace}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`."""
        self._pending = None
        self._step = state["step"]
        self.average.gradient, self.average.trace = state["gradient"], state["trace"]

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
