"""What one process needs to drive N replicas of this machine: its environment, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.errors import DeviceError, SettingError, UnsupportedError, message
from phalanx.host import accelerators
from phalanx.text import many

_MANY = 64
_VISIBLE = {"NVIDIA GPU": "CUDA_VISIBLE_DEVICES", "AMD GPU": "HIP_VISIBLE_DEVICES"}
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}  # chips of one process -> their grid


@dataclass(frozen=True)
class RunPlan:
    """What the script's environment will be, and one sentence that says so.

    Args:
        reason: What runs where, and why.
        changes: Variables to set.
        warning: What to think about before it runs, if anything.
    """

    reason: str
    changes: Mapping[str, str] = field(default_factory=dict)
    warning: str | None = None


def plan_run(
    replicas: int | None, environ: Mapping[str, str], found: accelerators.Accelerators, cpus: int
) -> RunPlan:
    """Decide the environment of the script.

    Args:
        replicas: What the user asked for, or None.
        environ: The user's environment.
        found: Accelerators of this machine.
        cpus: Cores.

    Returns:
        The plan.

    Raises:
        DeviceError: More replicas than accelerators.
        SettingError: The environment asks for another Keras backend, or for a platform that is not there.
        UnsupportedError: A part of a TPU host that cannot be cut out.

    Example:
        >>> plan_run(2, {}, accelerators.Accelerators(), cpus=2).changes["JAX_NUM_CPU_DEVICES"]
        '2'
    """
    backend = environ.get("KERAS_BACKEND") or "jax"
    if backend != "jax":
        raise SettingError(
            message(
                "Phalanx trains Keras models on the JAX backend.",
                f"KERAS_BACKEND={backend}",
                "export KERAS_BACKEND=jax",
            )
        )
    visible, why = accelerators_for(environ, found)
    if visible:
        return _on_accelerators(replicas, found, visible)
    platforms = _platforms(environ)
    if platforms and "cpu" not in platforms:
        if replicas is None:  # JAX may know an accelerator that we do not
            return RunPlan(f"JAX_PLATFORMS={','.join(platforms)} ({why})", {"KERAS_BACKEND": "jax"})
        raise SettingError(
            message(
                "JAX must be allowed to use what --replicas counts.",
                f"JAX_PLATFORMS={','.join(platforms)} ({why})",
                f"JAX_PLATFORMS=cpu phalanx run --replicas {replicas} train.py",
            )
        )
    return _on_cpu(replicas, environ, why, cpus)


def accelerators_for(environ: Mapping[str, str], found: accelerators.Accelerators) -> tuple[list[str], str]:
    """The accelerators that JAX would use in this environment.

    Args:
        environ: The user's environment.
        found: Accelerators of this machine.

    Returns:
        Their names, as `visible_variable` lists them, and why there are none, if there are none.

    Example:
        >>> gpus = accelerators.Accelerators("NVIDIA GPU", 2, usable=True)
        >>> accelerators_for({"CUDA_VISIBLE_DEVICES": "1"}, gpus)
        (['1'], '')
        >>> accelerators_for({"JAX_PLATFORMS": "cpu"}, gpus)
        ([], 'JAX_PLATFORMS=cpu')
    """
    platforms = _platforms(environ)
    if platforms[:1] == ["cpu"]:
        return [], f"JAX_PLATFORMS={','.join(platforms)}"
    if found.kind is None:
        return [], "no accelerator found"
    if not found.usable:
        return [], f"{many(found.count, found.kind)} found, but JAX's plugin is not installed"
    variable = visible_variable(found.kind)
    chosen = environ.get(variable) if variable else None
    visible = _visible(chosen, found.count)
    return visible, "" if visible else f"{variable}={chosen} hides {many(found.count, found.kind)}"


def crowd_warning(count: int, cpus: int) -> str | None:
    """What to say about many CPU replicas, or None where they are few.

    Example:
        >>> crowd_warning(64, 2) is None
        True
    """
    if count <= _MANY:
        return None
    return message(
        "CPU replicas share the cores of this machine; they test code and do not make it faster.",
        f"{count} replicas on {many(cpus, 'core')}",
        "phalanx run --replicas 8 train.py",
    )


def visible_variable(kind: str | None) -> str | None:
    """The variable that lists the accelerators which a process may use, if there is one for this kind.

    Example:
        >>> visible_variable("AMD GPU")
        'HIP_VISIBLE_DEVICES'
    """
    return _VISIBLE.get(kind or "")


def _platforms(environ: Mapping[str, str]) -> list[str]:
    return [each for each in environ.get("JAX_PLATFORMS", "").split(",") if each]


def _on_cpu(replicas: int | None, environ: Mapping[str, str], why: str, cpus: int) -> RunPlan:
    changes = {"KERAS_BACKEND": "jax"}
    name, asked = _asked_for(environ)
    count = replicas or asked
    if count is None:
        return RunPlan(f"1 CPU replica ({why}; --replicas N makes N)", changes)
    if not environ.get("NPROC"):
        # Threads that wait for each other: twice the replicas never stopped, one more than them did.
        changes["NPROC"] = str(max(cpus, 2 * count))
    if replicas is not None:
        changes["JAX_NUM_CPU_DEVICES"] = str(replicas)
        if not environ.get("JAX_PLATFORMS"):
            changes["JAX_PLATFORMS"] = "cpu"
    note = "" if name is None or asked == replicas else f"; --replicas wins over {name}={asked}"
    if replicas is None:
        note = f"; {name}={asked}"
    return RunPlan(f"{many(count, 'CPU replica')} ({why}{note})", changes, crowd_warning(count, cpus))


def _on_accelerators(replicas: int | None, found: accelerators.Accelerators, visible: list[str]) -> RunPlan:
    kind = str(found.kind)
    replicas = len(visible) if replicas is None else replicas
    if replicas > len(visible):
        raise DeviceError(
            message(
                "Each replica has an accelerator of its own.",
                f"--replicas {replicas}, but {many(len(visible), f'visible {kind}')}",
                f"phalanx run --replicas {len(visible)} train.py"
                f"   # or JAX_PLATFORMS=cpu phalanx run --replicas {replicas} train.py",
            )
        )
    changes = {"KERAS_BACKEND": "jax"}
    if replicas == len(visible):
        return RunPlan(many(replicas, kind), changes)
    if kind in _VISIBLE:
        changes[_VISIBLE[kind]] = ",".join(visible[:replicas])
    else:
        chips, half = divmod(replicas, found.devices_per_chip)
        if half or chips not in _TPU_BOUNDS:
            sizes = ", ".join(str(size * found.devices_per_chip) for size in _TPU_BOUNDS)
            raise UnsupportedError(
                message(
                    f"A part of this TPU host has {sizes} devices.",
                    f"--replicas {replicas} of {len(visible)}",
                    'strategy = phalanx.MirroredStrategy(devices=["tpu:0", "tpu:1", "tpu:2"])'
                    "   # in the script",
                )
            )
        changes["TPU_VISIBLE_CHIPS"] = ",".join(str(chip) for chip in range(chips))
        changes["TPU_CHIPS_PER_PROCESS_BOUNDS"] = _TPU_BOUNDS[chips]
        changes["TPU_PROCESS_BOUNDS"] = "1,1,1"
    return RunPlan(f"{replicas} of {many(len(visible), kind)}", changes)


def _visible(chosen: str | None, count: int) -> list[str]:
    """The GPUs that a user's list leaves visible; like CUDA, it ends at the first that is not there."""
    if chosen is None:
        return [str(index) for index in range(count)]
    visible = []
    for each in (name.strip() for name in chosen.split(",")):
        there = int(each) < count if each.isdecimal() else each.startswith(("GPU-", "MIG-"))
        if not there:
            break
        visible.append(each)
    return visible


def _asked_for(environ: Mapping[str, str]) -> tuple[str | None, int | None]:
    """How the environment asks for a number of CPU devices, if it does; of the two, JAX's own wins."""
    own = environ.get("JAX_NUM_CPU_DEVICES", "")
    if re.fullmatch(r"[1-9][0-9]{0,8}", own):
        return "JAX_NUM_CPU_DEVICES", int(own)
    if own:
        raise SettingError(
            message(
                "JAX_NUM_CPU_DEVICES is a whole number of devices, 1 or more.",
                f"JAX_NUM_CPU_DEVICES={own}",
                "unset JAX_NUM_CPU_DEVICES; phalanx run --replicas 2 train.py",
            )
        )
    forced = re.findall(
        r"--xla_force_host_platform_device_count=([0-9]{1,9})\b", environ.get("XLA_FLAGS", "")
    )
    return ("--xla_force_host_platform_device_count", int(forced[-1])) if forced else (None, None)
