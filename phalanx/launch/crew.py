"""The workers of one run: started together, heard together, ended together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.host import family, watch
from phalanx.launch.console import ERR, OUT
from phalanx.launch.lines import Lines, Tail, shown
from phalanx.launch.turns import Turns
from phalanx.restart import LOST

_AFTER_KILL = 3.0  # seconds in which a killed process is gone, unless the kernel holds it
_LOOK_AGAIN = 0.1  # seconds between looks for processes that were being started when the others were killed
_CHUNKS = 256  # what is read from a stream of the dead, at most
_CONSEQUENCES = (-6, -15, LOST)  # SIGABRT, SIGTERM, 76: what one worker's failure does to the others


@dataclass
class Worker:
    """One worker.

    Args:
        index: Which one; 0 is the chief.
        streams: Its file descriptors that are open, each with `OUT` or `ERR`.
        tail: The last lines of its standard error.
    """

    index: int
    streams: dict[int, int]
    tail: Tail = field(default_factory=Tail)
    lines: dict[int, Lines] = field(default_factory=lambda: {OUT: Lines(), ERR: Lines()})


@dataclass(frozen=True)
class Ended:
    """A worker that has ended.

    Args:
        worker: Which one.
        status: Its exit code, or the negative number of the signal that ended it.
    """

    worker: Worker
    status: int


class Crew:
    """The workers of one run.

    Args:
        processes: Where they are started.
        turns: How the launcher waits.
    """

    def __init__(self, processes: family.Family, turns: Turns) -> None:
        self._family = processes
        self._turns = turns
        self._workers: dict[int, Worker] = {}  # by process number
        self._running: set[int] = set()

    @property
    def running(self) -> int:
        """Workers that have not ended."""
        return len(self._running)

    def start(self, index: int, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start a worker.

        Args:
            index: Which one.
            arguments: What stands behind `python`.
            environ: Its whole environment.
        """
        child = self._family.start_python(arguments, environ)
        self._workers[child.pid] = Worker(index, {child.out: OUT, child.err: ERR})
        self._running.add(child.pid)

    def turn(self, until: float | None) -> list[Ended]:
        """Wait until something happens, and show what the workers said.

        Args:
            until: When to give up; None waits for as long as it takes.

        Returns:
            Workers that ended.
        """
        owners = {number: worker for worker in self._workers.values() for number in worker.streams}
        ready = self._turns.turn(owners.keys(), until)
        for number in ready.readable:
            self._hear(owners[number], number)
        ended = self._family.ended() if ready.child else {}
        self._running -= ended.keys()
        return [Ended(self._workers[pid], status) for pid, status in ended.items() if pid in self._workers]

    def end(self, grace: float) -> None:
        """End every process that is left: SIGTERM, after the grace time SIGKILL.

        Args:
            grace: Seconds between the two.
        """
        say = self._turns.console.say
        if not (left := self._family.alive()):
            return
        if not self._running:
            say(f"ending what the workers left running: process {', '.join(map(str, sorted(left)))}")
        self._family.signal("SIGTERM")
        until = watch.now() + grace
        while self._family.alive() and watch.now() < until and not self._turns.hurry:
            self.turn(until)
        if not self._family.alive():
            return
        for pid in sorted(self._running):
            say(f"worker {self._workers[pid].index} did not end on SIGTERM: SIGKILL")
        until = watch.now() + _AFTER_KILL
        while self._family.alive() and watch.now() < until:
            self._family.signal("SIGKILL")
            self.turn(min(until, watch.now() + _LOOK_AGAIN))
        for pid in sorted(self._family.alive()):
            say(f"process {pid} does not end on SIGKILL: the kernel holds it")

    def hear_rest(self) -> None:
        """Show what the workers said last, and let go of their streams."""
        for worker in self._workers.values():
            for number in list(worker.streams):
                for _ in range(_CHUNKS):
                    if number not in worker.streams or not watch.has_bytes(number):
                        break
                    self._hear(worker, number)
            flush(self._turns, worker)
        self.close()

    def close(self) -> None:
        """Let go of the workers' streams."""
        for worker in self._workers.values():
            for number in worker.streams:
                watch.close(number)
            worker.streams.clear()

    def _hear(self, worker: Worker, number: int) -> None:
        stream = worker.streams[number]
        data = watch.read(number)
        if not data:
            watch.close(number)
            del worker.streams[number]
            return
        hear(self._turns, worker, stream, data)


def hear(turns: Turns, worker: Worker, stream: int, data: bytes) -> None:
    """Show what a worker has said.

    Args:
        turns: Where it is shown.
        worker: Who said it.
        stream: `OUT` or `ERR`.
        data: The bytes.
    """
    if worker.index == 0:
        turns.console.chief(stream, data, watch.now())
    _show(turns, worker, stream, worker.lines[stream].feed(data))


def flush(turns: Turns, worker: Worker) -> None:
    """Show the last line of a worker, though it has no end."""
    for stream, lines in worker.lines.items():
        _show(turns, worker, stream, lines.flush())


def _show(turns: Turns, worker: Worker, stream: int, lines: Sequence[bytes]) -> None:
    if stream == ERR:
        worker.tail.add(lines)
    if worker.index:
        visible = [line for line in map(shown, lines) if line is not None]
        turns.console.other(stream, worker.index, visible, watch.now())


def first_failure(ended: Sequence[Ended]) -> Ended | None:
    """The worker to blame among those that were found ended at one look.

    Which of them was first is not known then. SIGABRT is how the engine ends a worker that has lost another
    one, so any other failure comes first; among equals the lowest index.

    Args:
        ended: Workers.

    Returns:
        One that failed, or None.

    Example:
        >>> chief, other = Worker(0, {}), Worker(1, {})
        >>> first_failure([Ended(chief, 76), Ended(other, 3)]).worker.index
        1
    """
    failed = [each for each in ended if each.status != 0]
    return min(failed, key=lambda each: (each.status in _CONSEQUENCES, each.worker.index), default=None)
