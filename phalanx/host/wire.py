"""Messages between workers before JAX runs: one small JSON object per line, with a deadline."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from phalanx.host.watch import now

_LONGEST = 64 * 1024
_MOST_SILENT = 256  # connections that may say nothing at once
_WHOLE = 1.0  # seconds for the rest of an object that has begun


class Wire:
    """A connection that carries JSON objects.

    Args:
        connection: A connected socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    def send(self, value: dict[str, Any]) -> None:
        """Send one object; a peer that is gone does not matter to the sender."""
        with contextlib.suppress(OSError):
            self._connection.settimeout(5.0)
            self._connection.sendall(json.dumps(value).encode() + b"\n")

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """The next object, or None if there is none before the deadline or the peer is gone.

        What is longer than 64 KiB or no JSON object counts as gone: data from the network is never more
        than data.
        """
        while b"\n" not in self._rest:
            left = deadline - now()
            if left <= 0 or len(self._rest) > _LONGEST:
                return None
            self._connection.settimeout(left)
            try:
                more = self._connection.recv(4096)
            except OSError:
                return None
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def has_line(self) -> bool:
        """True if a whole object has arrived already."""
        return b"\n" in self._rest

    @property
    def socket(self) -> socket.socket:
        """The socket, to wait on."""
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on one address, never on all interfaces.

    Raises:
        OSError: The port is taken, or the address is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        yield listener


def guests(listener: socket.socket, deadline: float, patience: float) -> Iterator[tuple[Wire, Any]]:
    """Connections as they speak, each with the first object that it says, or None for anything else.

    One that stays silent keeps nobody waiting: it is closed after `patience` seconds, the longest silent of
    very many at once. The iterator ends at the deadline.
    """
    silent: dict[socket.socket, float] = {}  # connections that have said nothing yet, oldest first
    listener.setblocking(False)
    try:
        while (moment := now()) < deadline:
            late = [line for line, since in silent.items() if moment - since > patience]
            for line in [*late, *list(silent)[: max(0, len(silent) - _MOST_SILENT)]]:
                if silent.pop(line, None) is not None:
                    line.close()
            ready, _, _ = select.select([listener, *silent], [], [], min(1.0, deadline - moment))
            for line in ready:
                if line is not listener:
                    del silent[line]
                    guest = Wire(line)
                    yield guest, guest.receive(min(deadline, now() + _WHOLE))
                    continue
                with contextlib.suppress(OSError):  # gone again before we looked
                    silent[listener.accept()[0]] = now()
    finally:
        for line in silent:
            line.close()


def connect(host: str, port: int, deadline: float, pause: float = 0.05) -> Wire | str:
    """Connect to a peer that may not listen yet.

    Args:
        host: Its name or address.
        port: Its port.
        deadline: When to give up, on the clock of `now`.
        pause: Seconds between two tries.

    Returns:
        The connection, or why the last try failed.
    """
    why = "no try was made"
    while (left := deadline - now()) > 0:
        try:
            return Wire(socket.create_connection((host, port), timeout=min(left, 5.0)))
        except OSError as error:
            why = str(error)
        time.sleep(min(pause, max(0.0, deadline - now())))
    return why


def readable(lines: Mapping[int, Wire], until: float) -> list[int]:
    """Which lines have something to say, or have ended, before a moment of the clock of `now`."""
    waiting = [key for key, line in lines.items() if line.has_line()]
    if waiting:
        return waiting
    left = max(0.0, until - now())
    if not lines:
        time.sleep(left)
        return []
    found, _, _ = select.select([line.socket for line in lines.values()], [], [], left)
    return [key for key, line in lines.items() if line.socket in found]


def addresses_of(host: str) -> list[str]:
    """The IP addresses that a name means on this machine; empty if it means none."""
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def wait_for_name(host: str, deadline: float) -> None:
    """Wait until a name has an address; a new pod's name comes some seconds after the pod."""
    while not addresses_of(host) and now() < deadline:
        time.sleep(min(0.5, max(0.0, deadline - now())))
