"""The whole model on every device of several machines: the same script on every node."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.cluster.resolution import resolve
from phalanx.cluster.spec import ClusterSpec
from phalanx.engine import runtime
from phalanx.errors import SettingError, WorkerLost, message, warn
from phalanx.precision import Precision
from phalanx.strategies.base import Strategy
from phalanx.strategies.joining import join


class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous data parallelism over all devices of all workers.

    The topology comes from the environment (`TF_CONFIG` and others, see `phalanx.cluster.resolve`); with one
    worker it is a `MirroredStrategy`. Every worker reads the same global batches and takes its own rows.

    Args:
        cluster_resolver: A `ClusterSpec`; None asks the environment.
        communication_options: Accepted for tf.distribute's sake; without effect, with a warning.
        view: `"global"` or `"replica"`, see `MirroredStrategy`.
        host_only: Keys of dict features that stay on the host.
        precision: What to do about outputs that compute in 16 bits; see `phalanx.Precision`.
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
        cluster_resolver: ClusterSpec | None = None,
        communication_options: Any = None,
        *,
        view: str = "global",
        host_only: Sequence[str] = (),
        precision: Precision | None = None,
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
        if communication_options is not None:
            warn(
                message(
                    "The engine chooses how gradients travel.",
                    f"communication_options={communication_options!r} is without effect",
                    "phalanx.MultiWorkerMirroredStrategy()",
                )
            )
        self.cluster_resolver = _checked(cluster_resolver)
        exchange = None
        if self.cluster_resolver.num_workers > 1:
            exchange = join(self.cluster_resolver, connect_timeout, peer_timeout)
        super().__init__(None, view=view, host_only=host_only, precision=precision, exchange=exchange)

    @property
    def num_workers(self) -> int:
        """Host programs that take part."""
        return self.world.processes

    @property
    def worker_index(self) -> int:
        """Which of them this one is."""
        return self.world.process

    def barrier(self, name: str, timeout: float = runtime.PATIENCE) -> None:
        """Wait until every worker is at the barrier of this name.

        Args:
            name: What all of them call it.
            timeout: Seconds to wait.

        Raises:
            WorkerLost: A worker did not come in time, or is at another place of the script.
        """
        if self.exchange is not None:
            self.exchange.gather(f"barrier {name!r}", "", timeout)

    def gather(self, value: Any) -> list[Any]:
        """Every worker's small host value, in worker order, on every worker.

        Args:
            value: What JSON can say: numbers, texts, lists, dicts of texts, None.

        Raises:
            SettingError: A value that JSON cannot say.
            WorkerLost: A worker did not come in time, or is at another place of the script.
        """
        text = _json(value)
        if self.exchange is None:
            return [json.loads(text)]
        return [json.loads(each) for each in self.exchange.gather("gather", text)]

    def broadcast(self, value: Any) -> Any:
        """The chief's small host value on every worker; see `gather`."""
        return self.gather(value if self.is_chief else None)[0]

    @contextlib.contextmanager
    def chief_first(self) -> Iterator[None]:
        """The chief runs the block, the others wait, then run it: to download or prepare data once.

        Raises:
            WorkerLost: The chief's block failed, on the others; on the chief its own error.
        """
        what = "the end of the chief's block"
        if self.exchange is None:
            yield
        elif self.is_chief:
            try:
                yield
            except BaseException as error:
                self.exchange.gather(what, f"{type(error).__name__}: {error}")
                raise
            self.exchange.gather(what, "")
        else:
            failed = self.exchange.from_chief(what, "")
            if failed:
                raise WorkerLost(
                    message(
                        "What stands under chief_first runs on the chief before it runs elsewhere.",
                        f"it failed on worker 0: {failed}",
                        "look at the output of worker 0",
                    )
                )
            yield


def _checked(given: Any) -> ClusterSpec:
    spec = resolve() if given is None else given
    if not isinstance(spec, ClusterSpec):
        raise SettingError(
            message(
                "cluster_resolver is a ClusterSpec; None asks the environment.",
                f"cluster_resolver={given!r} of type {type(given).__name__}",
                "phalanx.MultiWorkerMirroredStrategy(phalanx.cluster.resolve())",
            )
        )
    return spec


def _json(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise SettingError(
            message(
                "Workers tell each other small values that JSON can say.",
                f"{type(value).__name__}: {error}",
                "strategy.gather(float(value))   # numbers, texts, lists, dicts",
            )
        ) from error
