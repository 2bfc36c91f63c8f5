"""Workers on a Ray cluster: placed as a gang, heard and restarted as local ones.

Ray places and carries; an actor on each place keeps one process, which is the script and nothing of Ray.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.errors import PhalanxError, SettingError, message
from phalanx.host import files, ray_cluster, watch
from phalanx.host.keeper import Keeper
from phalanx.launch.crew import Ended, Worker, first_failure, flush, hear
from phalanx.launch.supervise import Settings, ending, farewell, repeat
from phalanx.launch.turns import Turns
from phalanx.restart import Exit, decide
from phalanx.text import many

CARRIED = ("KERAS_", "JAX_", "XLA_", "NCCL_", "TF_CPP_", "NPROC", "PYTHONPATH")
"""Variables of the user's environment that go to every worker: names that begin so."""

_PLACED = 60.0  # seconds for the gang to be placed, and for its actors to answer
_HEAR = 0.5  # seconds for which an actor waits for output
_LOST = -9  # the status of a worker that is gone with its node


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """What runs on the cluster.

    Args:
        arguments: What stands behind `phalanx run`'s own options: the script or module, and its arguments.
        script: The script's path, or None for a module.
        workers: How many.
        replicas: Model copies of each, or None.
        address: The cluster's, or None for the one that Ray finds.
    """

    arguments: Sequence[str]
    script: str | None
    workers: int
    replicas: int | None = None
    address: str | None = None


def supervise_on_ray(job: RayJob, environ: Mapping[str, str], settings: Settings) -> int:
    """Run workers on a Ray cluster until they are done.

    Args:
        job: What runs.
        environ: The user's environment.
        settings: How workers are ended and started again.

    Returns:
        The exit code, as of local workers.

    Raises:
        SettingError: Ray is not installed, no cluster is found, or it has no room for all workers at once.
    """
    ray = ray_cluster.join(job.address)
    try:
        with watch.Watch() as eyes:
            turns = Turns(eyes)

            def run_once(history: Sequence[Exit]) -> tuple[Exit, str]:
                gang = _Gang(ray, job, environ, turns)
                try:
                    return gang.run(history, settings)
                finally:
                    gang.close()

            return repeat(run_once, turns, settings.policy, job.workers)
    finally:
        ray.shutdown()


class _Told(Exception):
    """The launcher is told to end while it waits for the cluster."""


class _Gang:
    """The workers of one run."""

    def __init__(self, ray: Any, job: RayJob, environ: Mapping[str, str], turns: Turns) -> None:
        self._ray, self._job, self._environ, self._turns = ray, job, environ, turns
        self._workers = [Worker(index, {}) for index in range(job.workers)]
        self._actors: list[Any] = []
        self._asked: dict[Any, int] = {}  # who is asked for output
        self._group: Any = None

    def run(self, history: Sequence[Exit], settings: Settings) -> tuple[Exit, str]:
        started = watch.now()
        with contextlib.suppress(_Told):
            self._start()
        culprit, told = None, self._turns.told
        exit = ending(None, started, len(self._asked), told)
        while exit.told is None and decide(history, exit, watch.now(), settings.policy).action == "wait":
            ended = self._turn()
            culprit = first_failure(ended)
            exit = ending(culprit or next(iter(ended), None), started, len(self._asked), self._turns.told)
        if self._turns.told is not None and self._asked:
            self._turns.console.say(farewell(self._turns.told, len(self._asked), settings.grace))
        self._end(settings.grace)
        for worker in self._workers:
            flush(self._turns, worker)
        exit = replace(exit, saved=self._saved())
        return exit, culprit.worker.tail.text() if culprit is not None else ""

    def close(self) -> None:
        """Give the places back."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)

    def _start(self) -> None:
        ray, job = self._ray, self._job
        gpus = 0
        if ray.cluster_resources().get("GPU", 0) and self._environ.get("JAX_PLATFORMS", "") != "cpu":
            gpus = job.replicas or 1
        bundle = {"CPU": 1, **({"GPU": gpus} if gpus else {})}
        found = ray.cluster_resources()
        room = all(found.get(kind, 0) >= count * job.workers for kind, count in bundle.items())
        if room:
            self._group = ray.util.placement_group([bundle] * job.workers, strategy="SPREAD")
        if not room or not self._patiently(self._group.wait):
            raise SettingError(
                message(
                    "All workers have a place at once, or none starts.",
                    f"{many(job.workers, 'worker')} of {bundle}; the cluster has {_has(ray)}",
                    f"phalanx run --on ray --workers {max(1, job.workers - 1)} train.py   # or more nodes",
                )
            )
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        keeper = ray.remote(_Actor)
        for index in range(job.workers):
            where = strategy(self._group, placement_group_bundle_index=index)
            options = {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": where}
            self._actors.append(keeper.options(**options).remote())
        folder = files.working_folder()
        places = self._ask([actor.place.remote(folder, job.script) for actor in self._actors])
        for index, (host, _, missing) in enumerate(places):
            if missing:
                raise SettingError(
                    message(
                        "The script is at the same path on every node.",
                        f"worker {index} on {host}: {missing}",
                        "cd /shared/project && phalanx run --on ray --workers 2 train.py",
                    )
                )
        addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port, _ in places]
        front = ["--replicas", str(job.replicas)] if job.replicas else []
        arguments = ["-m", "phalanx", "run", *front, *job.arguments]
        carried = {k: v for k, v in self._environ.items() if k.startswith(CARRIED)}
        started = []
        for index, actor in enumerate(self._actors):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            changes = {**carried, "TF_CONFIG": json.dumps(config), "PYTHONUNBUFFERED": "1"}
            started.append(actor.start.remote(arguments, changes, folder))
        self._ask(started)
        self._asked = {actor.hear.remote(_HEAR): index for index, actor in enumerate(self._actors)}

    def _ask(self, questions: Sequence[Any]) -> list[Any]:
        def answered(seconds: float) -> bool:
            return not self._ray.wait(list(questions), num_returns=len(questions), timeout=seconds)[1]

        try:
            self._patiently(answered)
            return list(self._ray.get(list(questions), timeout=0))
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, PhalanxError):
                raise cause from None
            raise SettingError(
                message(
                    "Every node has the same Python, Ray and Phalanx.",
                    f"a node gave no answer: {type(error).__name__}: {str(error).splitlines()[-1][:200]}",
                    "ray status   # and on each node: python -m phalanx --version",
                )
            ) from None

    def _patiently(self, wait: Callable[[float], bool]) -> bool:
        """Wait a little again and again, and look in between whether the launcher is told to end.

        Returns:
            Whether it came to pass in time.

        Raises:
            _Told: The launcher is told to end.
        """
        until = watch.now() + _PLACED
        while watch.now() < until:
            if wait(_HEAR):
                return True
            self._turns.turn((), watch.now() + 0.02)
            if self._turns.told is not None:
                raise _Told
        return False

    def _turn(self) -> list[Ended]:
        """Hear those that have something to say.

        Returns:
            Workers that ended.
        """
        self._turns.turn((), watch.now() + 0.02)
        if not self._asked or self._turns.console.full:
            return []
        ready, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0.1)
        ended = []
        for each in ready:
            worker = self._workers[self._asked.pop(each)]
            try:
                said, status = self._ray.get(each)
            except self._ray.exceptions.RayError as error:
                said, status = [(2, f"{type(error).__name__}: its node or actor is gone\n".encode())], _LOST
            for stream, data in said:
                hear(self._turns, worker, stream, data)
            if status is None:
                self._asked[self._actors[worker.index].hear.remote(_HEAR)] = worker.index
            else:
                ended.append(Ended(worker, status))
        return ended

    def _end(self, grace: float) -> None:
        left = self._signal("SIGTERM", 5.0)
        until = watch.now() + grace
        while left and self._asked and watch.now() < until and not self._turns.hurry:
            self._turn()
        self._signal("SIGKILL", 5.0)
        until = watch.now() + 1.0
        while self._asked and watch.now() < until:
            self._turn()

    def _saved(self) -> int:
        """Backups that became complete in this run, as far as the nodes can still say so."""
        asked = [actor.saved.remote() for actor in self._actors]
        done, _ = self._ray.wait(asked, num_returns=len(asked), timeout=5.0) if asked else ([], [])
        total = 0
        for each in done:
            with contextlib.suppress(self._ray.exceptions.RayError):  # gone with all that it kept
                total += self._ray.get(each)
        return total

    def _signal(self, name: str, seconds: float) -> bool:
        """Whether anything is left of any worker that can be asked."""
        asked = [actor.end.remote(name) for actor in self._actors]
        done, _ = self._ray.wait(asked, num_returns=len(asked), timeout=seconds) if asked else ([], [])
        left = len(done) < len(asked)
        for each in done:
            try:
                left = not self._ray.get(each) or left
            except self._ray.exceptions.RayError:
                continue  # gone with all that it kept
        return left


class _Actor(Keeper):
    """A keeper that knows its node's address from Ray."""

    def __init__(self) -> None:
        self._address = ray_cluster.own_address()
        super().__init__(self._address)

    def place(self, folder: str, script: str | None) -> Any:
        """The address of this node, a free port, and what is missing here."""
        return (self._address, *super().place(folder, script))


def _has(ray: Any) -> str:
    found = ray.cluster_resources()
    return ", ".join(f"{found.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
