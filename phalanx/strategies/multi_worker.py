"""The whole model on every device of several machines: tf.distribute's name, the same script on every node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.cluster.rendezvous import meet
from phalanx.engine import runtime
from phalanx.errors import SettingError, message
from phalanx.host import machine
from phalanx.strategies.base import Strategy
from phalanx.strategies.watch import Watch


class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous data parallelism over all devices of all workers.

    The topology comes from the environment (`TF_CONFIG` and others, see `phalanx.cluster.resolve`); with one
    worker it is a `MirroredStrategy`. Every worker reads the same global batches and takes its own rows.

    Args:
        cluster_resolver: A `ClusterSpec`; None asks the environment.
        communication_options: Accepted for tf.distribute's sake; without effect, with a warning.
        view: `"global"` or `"replica"`, see `MirroredStrategy`.
        host_only: Keys of dict features that stay on the host.
        connect_timeout: Seconds to wait at the start until every worker is there.
        peer_timeout: Seconds after which a silent worker counts as lost.

    Raises:
        ClusterError: The environment describes no cluster, or a worker is missing.
        ScopeError: JAX has started already.

    References:
        `tf.distribute.MultiWorkerMirroredStrategy`.
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: Any = None,
        *,
        view: str = "global",
        host_only: Sequence[str] = (),
        connect_timeout: float = 120.0,
        peer_timeout: float = 30.0,
    ) -> None:
        for name, seconds in (("connect_timeout", connect_timeout), ("peer_timeout", peer_timeout)):
            if not 1 <= seconds < 1e6:
                raise SettingError(
                    message(
                        f"{name} is a number of seconds, 1 or more.",
                        f"{name}={seconds!r}",
                        f"phalanx.MultiWorkerMirroredStrategy({name}=30.0)",
                    )
                )
        self.cluster_resolver = cluster_resolver
        exchange = None
        if cluster_resolver.num_workers > 1:
            exchange = _join(cluster_resolver, connect_timeout, peer_timeout)
        super().__init__(None, view=view, host_only=host_only, exchange=exchange)

    @property
    def num_workers(self) -> int:
        """Host programs that take part."""
        return self.world.processes

    @property
    def worker_index(self) -> int:
        """Which of them this one is."""
        return self.world.process

    def barrier(self, name: str, timeout: float | None = None) -> None:
        """Wait until every worker is at the barrier of this name.

        Raises:
            WorkerLost: A worker did not come in time, or is at another place of the script.
        """
        if self.exchange is not None:
            self.exchange.gather(f"barrier {name!r}", "", timeout)


def _join(spec: Any, connect_timeout: float, peer_timeout: float) -> runtime.Exchange:
    """Meet, join the runtime, and keep watch."""
    known = spec.addresses
    workers = {i: known[i] if i < len(known) else "address unknown" for i in range(spec.num_workers)}
    coordinator = _split(spec.coordinator)
    lines = meet(coordinator, workers, spec.index, machine.card(), connect_timeout, spec.chief)
    runtime.join(
        spec.coordinator,
        spec.num_workers,
        spec.index,
        _split(known[spec.index])[0] if spec.index < len(known) else None,
        timeout=connect_timeout,
        peer_timeout=peer_timeout,
    )
    watch = Watch(lines, workers, peer_timeout)
    return watch.exchange


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
