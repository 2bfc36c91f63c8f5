"""Joining the other workers: the meeting, JAX's runtime, the watch; no model and no Keras."""

from __future__ import annotations

from phalanx.cluster import check
from phalanx.cluster.rendezvous import meet
from phalanx.cluster.spec import ClusterSpec
from phalanx.engine import runtime
from phalanx.errors import ClusterError
from phalanx.host import machine, wire
from phalanx.strategies.watch import Watch

_joined: dict[ClusterSpec, runtime.Exchange] = {}  # a process joins once; later strategies share it


def join(spec: ClusterSpec, connect_timeout: float, peer_timeout: float) -> runtime.Exchange:
    """Meet the other workers, join JAX's runtime with them, and keep watch until the process leaves.

    Args:
        spec: A cluster of several workers.
        connect_timeout: Seconds to wait until every worker is there.
        peer_timeout: Seconds after which a silent worker counts as lost.

    Returns:
        Where the workers tell each other small values; the same for the same cluster.

    Raises:
        ClusterError: A worker is missing or different, or a name means this machine alone.
        ScopeError: JAX has started already.
    """
    if spec in _joined:
        return _joined[spec]
    known = spec.addresses
    workers = {i: known[i] if i < len(known) else "address unknown" for i in range(spec.num_workers)}
    assert spec.coordinator is not None  # a ClusterSpec of several workers has one
    coordinator = _split(spec.coordinator)
    own = known[spec.index] if spec.index < len(known) else spec.coordinator
    near = {host: wire.addresses_of(host) for host in {coordinator[0], _split(own)[0]}}
    if (wrong := check.itself(spec, near)) is not None:
        raise ClusterError(wrong)
    lines = meet(coordinator, workers, spec.index, machine.card(), connect_timeout, spec.chief)
    runtime.join(
        spec.coordinator,
        spec.num_workers,
        spec.index,
        _split(known[spec.index])[0] if spec.index < len(known) else None,
        timeout=connect_timeout,
        peer_timeout=peer_timeout,
    )
    _joined[spec] = Watch(lines, workers, peer_timeout).exchange
    return _joined[spec]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
