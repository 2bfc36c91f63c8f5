"""What each local worker gets: its place in the cluster, its replicas, its share of the accelerators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.errors import DeviceError, UnsupportedError, message
from phalanx.host.accelerators import Accelerators
from phalanx.launch.replicas import accelerators_for, crowd_warning, plan_run, visible_variable
from phalanx.text import many

_FRACTIONS = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")  # JAX refuses both at once
_SHARED = 0.9  # of a GPU's memory, for all workers on it together
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class WorkersPlan:
    """What all workers will be, and one sentence that says so.

    Args:
        reason: What runs where, and why.
        changes: For each worker, the variables to set; its address is not among them yet.
        warning: What to think about before it runs, if anything.
    """

    reason: str
    changes: Sequence[Mapping[str, str]]
    warning: str | None = None


def plan_workers(
    workers: int, replicas: int | None, environ: Mapping[str, str], found: Accelerators, cpus: int
) -> WorkersPlan:
    """Decide the environments of local workers.

    Args:
        workers: How many there are.
        replicas: Model copies of each, or None for all that its share of the machine has.
        environ: The user's environment; its values win, and its list of visible GPUs is what is shared out.
        found: Accelerators of this machine.
        cpus: Cores.

    Returns:
        The plan.

    Raises:
        DeviceError: More replicas than accelerators.
        SettingError: The environment asks for another Keras backend, or for a platform that is not there.
        UnsupportedError: Several workers on one TPU host.

    Example:
        >>> plan = plan_workers(2, None, {}, Accelerators("NVIDIA GPU", 4, usable=True), cpus=8)
        >>> plan.reason
        '2 workers x 2 NVIDIA GPUs (0,1 | 2,3)'
        >>> plan.changes[1].get("CUDA_VISIBLE_DEVICES")
        '2,3'
    """
    visible, _ = accelerators_for(environ, found)
    variable = visible_variable(found.kind)
    if not visible:
        shares: list[dict[str, str]] = [{}] * workers
        note, warning = "", crowd_warning(workers * (replicas or 1), cpus)
    elif variable is None:
        _refuse_parts_of_a_tpu_host(workers, found)
        shares, note, warning = [{}], "", None
    elif workers > len(visible) and replicas in (None, 1):
        shares, note, warning = _lend(workers, visible, variable, str(found.kind), environ)
    else:
        shares, note, warning = _divide(workers, replicas, visible, variable, str(found.kind))
    plans = [plan_run(replicas, {**environ, **share}, found, cpus) for share in shares]
    reason = f"{many(workers, 'worker')} x {plans[0].reason}{note}"
    if environ.get("TF_CONFIG"):
        reason += "; --workers wins over TF_CONFIG"
    changes = []
    for share, plan in zip(shares, plans, strict=True):
        changes.append({**share, **plan.changes})
        if not environ.get("PYTHONUNBUFFERED"):
            changes[-1]["PYTHONUNBUFFERED"] = "1"  # a line is seen when it is printed
    return WorkersPlan(reason, changes, plans[0].warning or warning)


def with_address(
    index: int, ports: Sequence[int], changes: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a worker.

    Args:
        index: Which worker.
        ports: A port of the loopback address for each worker.
        changes: Its variables from the plan.
        environ: The user's environment.

    Returns:
        All variables.

    Example:
        >>> print(with_address(1, [7001, 7002], {}, {})["TF_CONFIG"])
        {"cluster": {"worker": ["127.0.0.1:7001", "127.0.0.1:7002"]}, "task": {"type": "worker", "index": 1}}
    """
    addresses = [f"{_HOST}:{port}" for port in ports]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    whole = {**environ, **changes, "TF_CONFIG": json.dumps(config)}
    if index == 0 and not environ.get("JAX_COORDINATOR_BIND_ADDRESS"):
        whole["JAX_COORDINATOR_BIND_ADDRESS"] = addresses[0]  # JAX alone would listen on every interface
    return whole


def _divide(
    workers: int, replicas: int | None, visible: list[str], variable: str, kind: str
) -> tuple[list[dict[str, str]], str, str | None]:
    """Neighbours for each worker; what does not divide stays idle, since all workers are alike."""
    each = len(visible) // workers if replicas is None else replicas
    if workers * each > len(visible):
        raise DeviceError(
            message(
                "Each replica has an accelerator of its own.",
                f"--workers {workers} --replicas {each}, but {many(len(visible), f'visible {kind}')}",
                f"phalanx run --workers {workers} train.py"
                f"   # or JAX_PLATFORMS=cpu phalanx run --workers {workers} --replicas {each} train.py",
            )
        )
    lists = [",".join(visible[index * each : (index + 1) * each]) for index in range(workers)]
    idle = len(visible) - workers * each
    note = f" ({' | '.join(lists)}{f'; {idle} of {len(visible)} idle' if idle else ''})"
    return [{variable: names} for names in lists], note, None


def _lend(
    workers: int, visible: list[str], variable: str, kind: str, environ: Mapping[str, str]
) -> tuple[list[dict[str, str]], str, str]:
    """More workers than GPUs: neighbours share one, and its memory."""
    places = [index * len(visible) // workers for index in range(workers)]
    shares = []
    for place in places:
        share = {variable: visible[place]}
        if not any(environ.get(name) for name in _FRACTIONS):
            share[_FRACTIONS[0]] = f"{int(100 * _SHARED / places.count(place)) / 100:.2f}"
        shares.append(share)
    warning = message(
        "Workers that share a GPU test code; NVIDIA's library for collectives may refuse two of them on one.",
        f"{many(workers, 'worker')} on {many(len(visible), kind)}",
        f"JAX_PLATFORMS=cpu phalanx run --workers {workers} train.py",
    )
    return shares, f" ({' | '.join(visible[place] for place in places)}, shared)", warning


def _refuse_parts_of_a_tpu_host(workers: int, found: Accelerators) -> None:
    if workers > 1:
        raise UnsupportedError(
            message(
                f"One worker drives all chips of a {found.kind} host.",
                f"--workers {workers} on {many(found.count, f'{found.kind} device')}",
                f"phalanx run train.py   # or JAX_PLATFORMS=cpu phalanx run --workers {workers} train.py",
            )
        )
