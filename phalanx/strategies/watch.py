"""What happens when a worker is lost, and how a worker leaves."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Mapping
from typing import Any

from phalanx.cluster.vigil import Loss, Vigil
from phalanx.engine import runtime
from phalanx.engine.runtime import Exchange
from phalanx.errors import WorkerLost
from phalanx.host import procs
from phalanx.host.wire import Wire
from phalanx.restart import LOST

_SOON = 1.0  # seconds in which Python mostly finds out by itself
_CHIEFLESS = 3.0  # seconds: JAX aborts a process that has lost the chief, which serves its runtime


class Watch:
    """Keeps watch, turns a loss into `WorkerLost`, and lets a worker leave without waiting for the dead.

    JAX's own way out waits for every worker and then aborts; a worker that knows better goes first.

    Args:
        lines: Open lines to other workers.
        workers: What to call each worker in a text.
        timeout: Seconds of silence after which a worker counts as lost.
    """

    def __init__(self, lines: Mapping[int, Wire], workers: Mapping[int, str], timeout: float) -> None:
        self.timeout = timeout
        self._told = threading.Event()
        self._failed = False
        self.exchange = Exchange(workers, self._loss)
        self.vigil = Vigil(lines, timeout, lambda: self.exchange.place, self._on_loss)
        self._excepthook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._leave)

    def _loss(self, seconds: float) -> Loss | None:
        """Who is lost; the script learns of it with this call."""
        loss = self.vigil.wait_for_loss(seconds)
        if loss is not None:
            self._told.set()
        return loss

    def _on_loss(self, loss: Loss) -> None:
        """Give Python time to find out by itself; if it stands in a collective for ever, end the process."""
        threading.Thread(target=self._end_if_stuck, args=(loss,), name="phalanx-loss", daemon=True).start()

    def _end_if_stuck(self, loss: Loss) -> None:
        if self._told.wait(_SOON):
            return
        procs.write_error(f"phalanx: {loss}")
        patience = _CHIEFLESS if loss.worker == 0 else 2 * self.timeout + 5
        if not self._told.wait(patience - _SOON):
            procs.end_now(LOST, f"phalanx: {loss}. This worker could not stop by itself, so it ends here.")

    def _on_exception(self, kind: Any, error: Any, trace: Any) -> None:
        self._failed = True
        self._excepthook(kind, error, trace)
        if not issubclass(kind, KeyboardInterrupt):
            procs.end_now(LOST if isinstance(error, WorkerLost) else 1, "")

    def _leave(self) -> None:
        """Leave together at the end of the script; alone where another worker is gone."""
        if self._failed:
            procs.end_now(1, "")
        try:
            self.exchange.gather("the end of the script", "")
        except WorkerLost as lost:
            if self.vigil.loss is not None:
                procs.end_now(LOST, f"phalanx: {lost}")
        if runtime.process() == 0:
            self.vigil.wait_for_goodbyes(self.timeout)
        runtime.leave()
        self.vigil.end()
