"""Measuring the way to a peer: the time of a short message there and back, and how many bytes pass."""

from __future__ import annotations

import contextlib
import selectors
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
_MOST = 256  # connections that are kept; the longest silent go first


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
    """Answer whoever speaks: a stranger that says nothing, or stops half way, keeps nobody waiting."""
    peers: dict[socket.socket, _Peer] = {}
    listener.setblocking(False)
    with selectors.DefaultSelector() as ready, contextlib.ExitStack() as opened:
        ready.register(listener, selectors.EVENT_READ)
        while not ended.is_set():
            for line in [key.fileobj for key, _ in ready.select(0.2)]:
                if line is listener:
                    with contextlib.suppress(OSError):
                        guest = opened.enter_context(listener.accept()[0])
                        guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        guest.setblocking(False)
                        peers[guest] = _Peer(now())
                        ready.register(guest, selectors.EVENT_READ)
                elif isinstance(line, socket.socket) and not _answer(line, peers[line]):
                    _let_go(line, peers, ready)
            silent = [line for line, peer in peers.items() if now() - peer.heard > _IDLE]
            surplus = sorted(peers, key=lambda line: peers[line].heard)[: max(0, len(peers) - _MOST)]
            for each in {*silent, *surplus}:
                _let_go(each, peers, ready)


@dataclass
class _Peer:
    """Who is connected: when it last spoke, and how many bytes of a measurement it has still to send."""

    heard: float
    owed: int = 0


def _answer(line: socket.socket, peer: _Peer) -> bool:
    """Hear what a peer has sent; False if it has gone, or takes no answer."""
    try:
        data = line.recv(min(peer.owed, len(_CHUNK)) or 1)
        peer.heard = now()
        if peer.owed:
            peer.owed -= len(data)
        elif data == _BULK:
            peer.owed = _SIZE
        if data and not peer.owed:
            line.send(b"k")
    except OSError:
        return False
    return bool(data)


def _let_go(line: socket.socket, peers: dict[socket.socket, _Peer], ready: selectors.BaseSelector) -> None:
    ready.unregister(line)
    del peers[line]
    line.close()
