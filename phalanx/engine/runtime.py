"""JAX's runtime of several processes: joining it, and small values that workers tell each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the client and the CPU collectives have no public twin
from jax._src.lib import _jax
from jax.experimental import multihost_utils

from phalanx.engine import programs
from phalanx.engine.devices import has_started
from phalanx.errors import ScopeError, WorkerLost, message
from phalanx.host import env
from phalanx.host.watch import now

PATIENCE = 600.0
"""Seconds to wait for a worker that lives: it may be saving, or preparing its data."""

_CARRIED = (
    "Gloo",
    "NCCL",
    "onnection",
    "imed out",
    "UNAVAILABLE",
    "DEADLINE",
)  # in texts of broken collectives
_UNTIL_NOTICED = 5.0  # seconds from a broken collective to the news of who broke it
_COLLECTIVE_TIMEOUT = "--xla_cpu_collective_timeout_seconds"


def join(
    coordinator: str, processes: int, process: int, host: str | None, *, timeout: float, peer_timeout: float
) -> None:
    """Join the runtime; from then on `jax.devices()` are those of all workers.

    Args:
        coordinator: `host:port` of the chief.
        processes: Number of workers.
        process: Which worker this is.
        host: Name or address at which the others reach this worker.
        timeout: Seconds to wait for the others.
        peer_timeout: Seconds after which a silent worker counts as lost.

    Raises:
        ScopeError: JAX has started already, with this process's devices alone.
    """
    if has_started():
        raise ScopeError(
            message(
                "The strategy of several workers is made before anything else uses JAX.",
                f"JAX is already in use, with {len(jax.local_devices())} devices of this process",
                "strategy = phalanx.MultiWorkerMirroredStrategy()   # first line after the imports",
            )
        )
    seconds = max(1, round(peer_timeout))
    flags = env.read("XLA_FLAGS") or ""
    if _COLLECTIVE_TIMEOUT not in flags:
        env.write("XLA_FLAGS", f"{flags} {_COLLECTIVE_TIMEOUT}={PATIENCE:.0f}".strip())
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update(
        "jax_enable_recoverability", True
    )  # a lost worker must not abort those that can still speak
    jax.config.update("jax_enable_preemption_service", False)  # it swallows SIGTERM
    jax.config.update("jax_check_proxy_envs", False)
    programs.keep_on_every_worker()
    _bind_collectives(host)
    jax.distributed.initialize(
        coordinator_address=coordinator,
        coordinator_bind_address=coordinator,  # JAX's default is every interface
        num_processes=processes,
        process_id=process,
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, round(timeout)),
        heartbeat_timeout_seconds=3 * seconds
        + 10,  # JAX aborts without a word: the watch, who names, goes first
        shutdown_timeout_seconds=seconds,
    )


def _bind_collectives(host: str | None) -> None:
    """Make the CPU collectives listen at this worker's own address, not at what the hostname resolves to."""
    make = _jax.make_gloo_tcp_collectives

    def bound(**options: Any) -> Any:
        return make(hostname=host, **options)

    _jax.make_gloo_tcp_collectives = bound  # 127.0.1.1 on Debian: the others find nobody there


def leave() -> None:
    """Leave the runtime; the chief, who serves it, goes last."""
    jax.distributed.shutdown()


def processes() -> int:
    """Number of workers; 1 where none was joined."""
    return jax.process_count()


def process() -> int:
    """Which worker this is."""
    return jax.process_index()


class Exchange:
    """Small texts that workers tell each other through JAX's coordination service, never through devices.

    Args:
        workers: What to call each worker in a text.
        loss: Waits some seconds and says who is lost, as text; None for nobody.

    Attributes:
        place: Where this worker is, for the others' texts.
    """

    def __init__(self, workers: Mapping[int, str], loss: Callable[[float], object | None]) -> None:
        self.workers, self._loss = workers, loss
        self.place = "the start"
        self._count = itertools.count()

    def gather(self, what: str, value: str, timeout: float = PATIENCE) -> list[str]:
        """Every worker's value, in worker order; all must ask for the same thing in the same order.

        Args:
            what: What is exchanged, for texts: `"the start of fit"`.
            value: This worker's.
            timeout: Seconds to wait for a worker that lives.

        Raises:
            WorkerLost: A worker gave no value in time, or is at another place of the script.
        """
        number = next(self._count)
        own, client = process(), _client()
        client.key_value_set(f"phalanx/{number}/{own}", f"{what}\n{value}")
        deadline = now() + timeout
        values = []
        for worker in sorted(self.workers):
            text = self._wait(client, f"phalanx/{number}/{worker}", deadline)
            if text is None:
                raise self._absent(worker, what, timeout)
            theirs, _, said = text.partition("\n")
            if theirs != what:
                raise WorkerLost(
                    message(
                        "Every worker runs the same script: what is done together is called by all.",
                        f"worker {own} is at {what}, worker {worker} ({self.workers[worker]}) is at {theirs}",
                        "strategy.is_chief is for writing; call fit, evaluate, predict everywhere",
                    )
                )
            values.append(said)
        if number >= 2:  # nobody can still want what all have answered two exchanges ago
            client.key_value_delete(f"phalanx/{number - 2}/{own}")
        return values

    def barrier(self, what: str) -> None:
        """Wait until every worker is here."""
        self.gather(what, "")

    def from_chief(self, what: str, value: str) -> str:
        """The chief's value."""
        return self.gather(what, value if process() == 0 else "")[0]

    def explain(self, error: Exception) -> None:
        """Raise in the name of a lost worker what a step raised because of it; return if nobody is lost."""
        carried = any(word in str(error) for word in _CARRIED)
        loss = self._loss(_UNTIL_NOTICED if carried else 0.0)
        if loss is not None:
            raise self._gone(loss) from error

    def _wait(self, client: Any, key: str, deadline: float) -> str | None:
        """A worker's word; slice by slice, so that a loss ends the wait."""
        while (left := deadline - now()) > 0:
            try:
                return client.blocking_key_value_get(key, max(1, int(1000 * min(left, 1.0))))
            except (
                Exception
            ):  # its type and text differ between releases; what counts is whether somebody is gone
                loss = self._loss(0.0)
                if loss is not None:
                    raise self._gone(loss) from None
        return None

    def _gone(self, loss: object) -> WorkerLost:
        return WorkerLost(
            message(
                "All workers finish a step, or none does.",
                f"{loss}; this is worker {process()} at {self.place}",
                "start all workers again; phalanx run --max-restarts 3 does so by itself",
            )
        )

    def _absent(self, worker: int, what: str, timeout: float) -> WorkerLost:
        return WorkerLost(
            message(
                "Every worker runs the same script: what is done together is called by all.",
                f"{what} on worker {process()} only: worker {worker} ({self.workers[worker]}) did not come "
                f"within {timeout:g} s",
                "strategy.is_chief is for writing; call fit, evaluate, predict everywhere",
            )
        )


def _client() -> Any:
    return distributed.global_state.client


def from_chief(values: list[Any]) -> list[Any]:
    """The chief's arrays on every worker, as NumPy arrays; a collective, so all call it."""
    return [np.asarray(v) for v in multihost_utils.broadcast_one_to_all(values, is_source=process() == 0)]
