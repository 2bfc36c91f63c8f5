"""Measuring the way to a peer: the time of a short message there and back, and how many bytes pass."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.host import wire
from phalanx.host.watch import now

_PINGS, _SIZE = 20, 4 * 1024 * 1024
_CHUNK = bytes(64 * 1024)
_PING, _BULK = b"p", b"b"
_IDLE = 60.0  # seconds after which a peer that says nothing is let go


@dataclass(frozen=True)
class Way:
    """How the way to a peer is.

    Args:
        milliseconds: Median time of a byte there and back.
        megabytes: Million bytes a second in this direction.
    """

    milliseconds: float
    megabytes: float


@contextlib.contextmanager
def answering(host: str) -> Iterator[int]:
    """Answer peers on a port of one address, as long as the block lasts.

    Args:
        host: The address; no other is listened on.

    Yields:
        The port, which the kernel chose.

    Raises:
        OSError: The address is not this machine's.
    """
    ended = threading.Event()
    with wire.listen(host, 0) as listener:
        server = threading.Thread(target=_serve, args=(listener, ended), name="phalanx-probe", daemon=True)
        server.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            server.join(5)


def measure(host: str, port: int, seconds: float) -> Way | str:
    """Go to a peer that is `answering`.

    Args:
        host: Its address.
        port: Its port.
        seconds: Time for all of it.

    Returns:
        The way, or why there is none.
    """
    deadline = now() + seconds
    try:
        with socket.create_connection((host, port), timeout=min(seconds, 5.0)) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = sorted(_ping(line, deadline) for _ in range(_PINGS))
            began = now()
            line.sendall(_BULK)
            for _ in range(_SIZE // len(_CHUNK)):
                line.settimeout(_left(deadline))
                line.sendall(_CHUNK)
            _read(line, 1, deadline)
            return Way(1000 * times[_PINGS // 2], _SIZE / 1e6 / max(now() - began, 1e-9))
    except OSError as error:
        return str(error) or type(error).__name__


def _ping(line: socket.socket, deadline: float) -> float:
    began = now()
    line.settimeout(_left(deadline))
    line.sendall(_PING)
    _read(line, 1, deadline)
    return now() - began


def _left(deadline: float) -> float:
    left = deadline - now()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _read(line: socket.socket, count: int, deadline: float) -> None:
    while count:
        line.settimeout(_left(deadline))
        data = line.recv(min(count, len(_CHUNK)))
        if not data:
            raise ConnectionResetError("closed by the peer")
        count -= len(data)


def _serve(listener: socket.socket, ended: threading.Event) -> None:
    """One peer after the other: two at once would measure each other."""
    listener.settimeout(0.2)
    while not ended.is_set():
        with contextlib.suppress(OSError):
            line, _ = listener.accept()
            with line:
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while not ended.is_set():
                    line.settimeout(_IDLE)
                    what = line.recv(1)
                    if not what:
                        break
                    if what == _BULK:
                        _read(line, _SIZE, now() + _IDLE)
                    line.sendall(b"k")
