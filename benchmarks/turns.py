"""The driver's side of a comparison of processes: contenders started, given turns and ended, by deadlines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STARTS, TURN, LEAVES = 300.0, 300.0, 20.0  # seconds: until it has warmed up; for one turn; to go
_TAIL = 2000  # characters of a log that are worth showing


@dataclass(frozen=True)
class Start:
    """How a contender is started.

    Attributes:
        name: What the tables call it.
        commands: One per process that the driver starts.
        environments: What is set for each of them.
        workers: How many workers will ask for turns.
    """

    name: str
    commands: Sequence[Sequence[str]]
    environments: Sequence[Mapping[str, str]]
    workers: int


@dataclass
class Contender:
    """Processes that train when it is their turn.

    Args:
        start: How it was started.
        logs: Where its processes print, one file each.
        processes: What was started.
        workers: The line to each worker, by its index.
        hello: What worker 0 said of itself: versions, checksum of its rows.
    """

    start: Start
    logs: list[Path]
    processes: list[subprocess.Popen[bytes]]
    workers: dict[int, Any] = field(default_factory=dict)
    hello: dict[str, Any] = field(default_factory=dict)

    def turn(self, epochs: int) -> dict[str, Any]:
        """Let it train.

        Returns:
            The answer of the worker that took longest, with the CPU seconds of all together.
        """
        for line in self.workers.values():
            line.write(f"{epochs}\n")
            line.flush()
        answers = [self._hear(line, "an answer to its turn") for line in self.workers.values()]
        slowest = max(answers, key=lambda answer: answer["seconds"])
        return {**slowest, "cpu_seconds": sum(answer["cpu_seconds"] for answer in answers)}

    def end(self) -> None:
        """Hang up; who does not leave by itself is ended by its own number."""
        for line in self.workers.values():
            line.close()
        deadline = time.monotonic() + LEAVES
        for process in self.processes:
            for signum in (None, signal.SIGTERM, signal.SIGKILL):
                if signum is not None:
                    os.killpg(process.pid, signum)
                try:
                    process.wait(max(1.0, deadline - time.monotonic()))
                    break
                except subprocess.TimeoutExpired:
                    continue

    def _hear(self, line: Any, what: str) -> dict[str, Any]:
        try:
            said = line.readline()
        except TimeoutError:
            said = ""
        if not said:
            raise SystemExit(
                f"{self.start.name} gave no sign where {what} was due.\n"
                f"  received: {[process.poll() for process in self.processes]} as exit codes\n{self.words()}"
            )
        return dict(json.loads(said))

    def words(self) -> str:
        """What its processes printed last."""
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-_TAIL:]}" for log in self.logs)


class Stage:
    """Starts contenders and listens to them on a port of its own.

    Args:
        folder: Where their output goes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.contenders: list[Contender] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for contender in self.contenders:
            contender.end()
        self._listener.close()

    @property
    def address(self) -> str:
        """Where workers ask for their turns."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def add(self, start: Start) -> Contender:
        """Start a contender and wait until all its workers have warmed up."""
        logs = [self.folder / f"{start.name}-{i}.log".replace(" ", "-") for i in range(len(start.commands))]
        contender = Contender(start, logs, [])
        self.contenders.append(contender)
        for command, environ, log in zip(start.commands, start.environments, logs, strict=True):
            with log.open("wb") as out:
                contender.processes.append(
                    subprocess.Popen(
                        command,
                        env=environ,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        deadline = time.monotonic() + STARTS
        while len(contender.workers) < start.workers:
            hello, line = self._accept(contender, deadline)
            contender.workers[hello["worker"]] = line
            if hello["worker"] == 0:
                contender.hello = hello
        return contender

    def _accept(self, contender: Contender, deadline: float) -> tuple[dict[str, Any], Any]:
        """The next worker that asks, or the end: a process died, or time is up."""
        self._listener.settimeout(0.5)
        while time.monotonic() < deadline and not any(process.poll() for process in contender.processes):
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:  # the line keeps it open
                connection.settimeout(TURN)
                line = connection.makefile("rw")
            return contender._hear(line, "its start"), line
        raise SystemExit(
            f"{contender.start.name} did not start.\n"
            f"  received: {[process.poll() for process in contender.processes]} as exit codes\n"
            f"{contender.words()}"
        )


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that are free now."""
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports
