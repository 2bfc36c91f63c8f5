"""Ports of the loopback address, chosen for other programs to listen on.

The engine binds its port itself and takes no socket from us. One that we closed just before would leave a gap
of seconds; one that we held would be in the way of each program that does not share its port. So nothing is
held, and three things close the gap:

* Launchers keep out of each other's way: who picks a port takes a name for it, an abstract Unix socket. It
  belongs to a network namespace as ports do, leaves no file, and goes with its process however that ends.
* The kernel keeps out of the way: picked ports lie below those that it lends to clients.
* A program that asks for exactly this port in exactly these seconds is left. The worker then says that the
  port is taken, and the supervisor starts all workers again on other ports.
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import socket
import sys
from collections.abc import Iterator

from phalanx.errors import SettingError, message

_HOST = "127.0.0.1"
_RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST, _WITHOUT_RANGE = 20_000, 65_535, 32_768
_TRIES = 4000


@contextlib.contextmanager
def claim(count: int, first: int | None) -> Iterator[list[int]]:
    """Claim ports, as long as the block lasts.

    Args:
        count: How many.
        first: The first of as many neighbours, or None for any that are free.

    Yields:
        The ports.

    Raises:
        SettingError: A wanted port is taken, or no free ones are found.
    """
    with contextlib.ExitStack() as names:
        if first is not None:
            ports = list(range(first, first + count))
            for port in ports:
                if (why := _take(port, names)) is not None:
                    raise _refuse(count, first, f"{port} {why}")
            yield ports
            return
        ports = []
        for port in _candidates():
            if _take(port, names) is None:
                ports.append(port)
            if len(ports) == count:
                yield ports
                return
        raise _refuse(count, first, f"{len(ports)} of {_TRIES} tried are free")


def choices(lent_from: int, lent_to: int) -> range:
    """Ports to choose from: those that the kernel does not lend to clients, or all high ones.

    Args:
        lent_from: The lowest that it lends.
        lent_to: The highest.

    Returns:
        Ports.

    Example:
        >>> choices(32768, 60999)
        range(20000, 32768)
        >>> choices(1024, 60999)
        range(61000, 65536)
        >>> choices(1024, 65535)
        range(20000, 65536)
    """
    if lent_from >= _LOWEST + _TRIES:
        return range(_LOWEST, lent_from)
    if lent_to <= _HIGHEST - _TRIES:
        return range(lent_to + 1, _HIGHEST + 1)
    return range(_LOWEST, _HIGHEST + 1)


def _candidates() -> list[int]:
    try:
        lent = [int(word) for word in _RANGE.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        lent = [_WITHOUT_RANGE, _HIGHEST]
    return random.SystemRandom().sample(choices(lent[0], lent[1]), _TRIES)


def _take(port: int, names: contextlib.ExitStack) -> str | None:
    """Take the name of a port if the port is free; else say why it is not."""
    with contextlib.ExitStack() as kept:
        if sys.platform == "linux":
            name = kept.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                name.bind(f"\0phalanx-port-{port}")
            except OSError:
                return "belongs to another phalanx run"
        with socket.socket() as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # ends of old connections are no hindrance
            try:
                probe.bind((_HOST, port))
                probe.listen()
            except OSError as error:
                return f"is taken ({error.strerror})"
        names.push(kept.pop_all())
    return None


def _refuse(count: int, first: int | None, why: str) -> SettingError:
    return SettingError(
        message(
            f"Each worker needs a free port of {_HOST}.",
            f"{'' if first is None else f'--port {first}: '}port {why}",
            f"phalanx run --workers {count} train.py   # takes free ports",
        )
    )
