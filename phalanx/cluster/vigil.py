"""Who is still there: a line between the chief and each worker, open for the whole run.

A process that dies closes its line at once. One that stands still, or is cut off, falls silent. Both are
told to all others, who stop waiting for it. No number of the training travels on the line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phalanx.host import wire


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A worker that is gone.

    Args:
        worker: Its index.
        why: What was noticed.
        place: What it was last known to do.
    """

    worker: int
    why: str
    place: str

    def __str__(self) -> str:
        return f"worker {self.worker} {self.why}; it was last at {self.place}"


class Vigil:
    """Watches the other workers in a thread, over lines that the first meeting opened.

    Args:
        lines: A line to each watched worker, by index: all others on the chief, the chief on the others.
        timeout: Seconds of silence after which a worker counts as lost.
        place: Where this worker is, to be told to the others.
        on_loss: Called once, in the watching thread, with the first loss.
    """

    def __init__(
        self,
        lines: Mapping[int, wire.Wire],
        timeout: float,
        place: Callable[[], str],
        on_loss: Callable[[Loss], None],
    ) -> None:
        self._lines = dict(lines)
        self._timeout = timeout
        self._place, self._on_loss = place, on_loss
        self._heard = dict.fromkeys(lines, wire.now())
        self._places = dict.fromkeys(lines, "the start")
        self._done = threading.Event()
        self._lost = threading.Event()
        self._alone = threading.Event()
        self.loss: Loss | None = None
        self._thread = threading.Thread(target=self._watch, name="phalanx-vigil", daemon=True)
        self._thread.start()

    def wait_for_loss(self, seconds: float) -> Loss | None:
        """The loss, if one is noticed within some seconds."""
        self._lost.wait(seconds)
        return self.loss

    def wait_for_goodbyes(self, seconds: float) -> None:
        """Wait until every watched worker has said goodbye."""
        self._alone.wait(seconds)

    def end(self) -> None:
        """Say goodbye and stop watching."""
        self._done.set()
        self._thread.join(self._timeout)
        for line in self._lines.values():
            line.send({"bye": True})
            line.close()

    def _watch(self) -> None:
        pause = self._timeout / 6
        beat, told = wire.now(), ""
        while not self._done.is_set():
            place = self._place()
            if place != told or wire.now() >= beat:  # news at once: it is what the others say of a dead one
                for line in self._lines.values():
                    line.send({"at": place})
                beat, told = wire.now() + pause, place
            ready = wire.readable(self._lines, min(beat, wire.now() + 0.2))
            for worker in ready:
                self._hear(worker, self._lines[worker].receive(wire.now() + 1.0))
            late = [
                w for w, at in self._heard.items() if w in self._lines and wire.now() - at > self._timeout
            ]
            for worker in late:
                self._drop(worker, f"was silent for {self._timeout:g} s: it stands still or is cut off")

    def _hear(self, worker: int, said: Mapping[str, object] | None) -> None:
        self._heard[worker] = wire.now()
        if said is None:
            self._drop(worker, "closed its connection: its process has ended")
        elif said.get("bye"):
            self._lines.pop(worker).close()
            if not self._lines:
                self._alone.set()
        elif "lost" in said:
            self._found(Loss(worker=_int(said["lost"]), why=str(said["why"]), place=str(said["at"])))
        else:
            self._places[worker] = str(said.get("at", ""))[:200]

    def _drop(self, worker: int, why: str) -> None:
        self._lines.pop(worker).close()
        self._found(Loss(worker=worker, why=why, place=self._places[worker]))

    def _found(self, loss: Loss) -> None:
        for line in self._lines.values():
            line.send({"lost": loss.worker, "why": loss.why, "at": loss.place})
        if self.loss is None:
            self.loss = loss
            self._lost.set()
            self._on_loss(loss)


def _int(value: object) -> int:
    return value if isinstance(value, int) else -1
