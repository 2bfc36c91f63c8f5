"""One worker's process on another machine: started, heard and ended for a launcher that is elsewhere.

A plain class; what carries its calls over the network is another's.
"""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from phalanx.host import progress, watch
from phalanx.host.family import Child, Family

_MOST = 256 * 1024  # bytes of one answer
_REST = 1.0  # seconds to look for processes that SIGKILL ends


class Keeper:
    """Keeps one process and all that it starts.

    Args:
        host: This machine's address, as the other machines know it.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._family: Family | None = None
        self._child: Child | None = None
        self._status: int | None = None
        self._open: dict[int, int] = {}  # file descriptors, each with 1 or 2: what it is of the child
        self._holder: socket.socket | None = None
        self._sign: int | None = None  # a file without a name, in which the process says that it got on

    def place(self, folder: str, script: str | None) -> tuple[int, str]:
        """Hold a free port until the process starts, and look for the script.

        Args:
            folder: Where the process is to run.
            script: Its path from there, or None for a module.

        Returns:
            The port, and what is missing here: empty where all is there.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._holder = socket.socket(family)
        self._holder.bind((self._host, 0))
        missing = ""
        if not pathlib.Path(folder).is_dir():
            missing = f"no folder {folder}"
        elif script is not None and not pathlib.Path(folder, script).exists():
            missing = f"no {script} in {folder}"
        return int(self._holder.getsockname()[1]), missing

    def start(self, arguments: Sequence[str], changes: Mapping[str, str], folder: str) -> None:
        """Start the process: this machine's Python and environment, with changes.

        Args:
            arguments: What stands behind `python`.
            changes: Variables to set.
            folder: Where it runs.
        """
        os.chdir(folder)
        self._family = Family().__enter__()
        if self._holder is not None:
            self._holder.close()
        if sys.platform == "linux":
            self._sign = os.memfd_create("progress")
            changes = {**changes, progress.VARIABLE: f"/proc/{os.getpid()}/fd/{self._sign}"}
        self._child = self._family.start_python(arguments, {**os.environ, **changes})
        self._open = {self._child.out: 1, self._child.err: 2}

    def hear(self, seconds: float) -> tuple[list[tuple[int, bytes]], int | None]:
        """What the process has said, or its end; waits until there is something.

        Args:
            seconds: How long to wait.

        Returns:
            Pieces of its output, each with 1 or 2; its exit code or negative signal once it has ended and
            all is said.
        """
        assert self._family is not None and self._child is not None
        until = watch.now() + seconds
        while True:
            said = self._read()
            if self._status is None:
                self._status = self._family.ended().get(self._child.pid)
                if self._status is not None:
                    said += self._read()
            if said or self._status is not None or watch.now() >= until:
                return said, None if said else self._status
            watch.pause(self._open, min(until, watch.now() + 0.05))

    def saved(self) -> int:
        """Backups that the process has completed."""
        return 0 if self._sign is None else os.fstat(self._sign).st_size

    def end(self, name: str) -> bool:
        """Send a signal to the process and all that it has started.

        Args:
            name: `"SIGTERM"`, or `"SIGKILL"`, which also waits.

        Returns:
            Whether none of them is left.
        """
        if self._family is None:
            return True
        self._family.signal(name)
        if signal.Signals[name] == signal.SIGKILL:
            until = watch.now() + _REST
            while self._family.alive() and watch.now() < until:
                self._family.signal(name)
                self._family.ended()
                watch.pause({}, watch.now() + 0.05)
        return not self._family.alive()

    def _read(self) -> list[tuple[int, bytes]]:
        said, size = [], 0
        for number, stream in list(self._open.items()):
            while size < _MOST and number in self._open and watch.has_bytes(number):
                data = watch.read(number)
                if not data:
                    watch.close(number)
                    del self._open[number]
                    break
                said.append((stream, data))
                size += len(data)
        return said
