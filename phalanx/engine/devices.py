"""Devices by their Keras names, and CPU replicas where there is nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
from jax._src import xla_bridge  # backends_are_initialized has no public twin

from phalanx.errors import DeviceError, message
from phalanx.host import env, machine, procs

_NAME = re.compile(r"(?P<platform>[a-z]+):(?P<index>\d+)")
_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def has_started() -> bool:
    """True once JAX has looked for devices; from then on their number is fixed."""
    return xla_bridge.backends_are_initialized()


def name_of(device: jax.Device) -> str:
    """The Keras name of a device, such as `"gpu:0"`.

    Example:
        >>> name_of(jax.devices("cpu")[0])
        'cpu:0'
    """
    return f"{device.platform}:{device.id}"


def default_name() -> str:
    """The Keras name of the device that JAX uses when none is asked for."""
    return name_of(jax.local_devices()[0])


def find(names: Sequence[str] | None) -> list[jax.Device]:
    """Resolve device names to devices, in the order given.

    If JAX has not started yet, missing CPU devices are made; afterwards their number is fixed.

    Args:
        names: Keras names such as `["gpu:0", "gpu:1"]`; None means every local device of the
            default platform.

    Returns:
        One JAX device per name.

    Raises:
        DeviceError: A name is malformed, unknown, given twice, or of another platform than the rest.
    """
    if names is None:
        return list(jax.local_devices())
    wanted = _parse(names)
    platform = wanted[0][0]
    if platform == "cpu":
        _make_cpu_devices(1 + max(index for _, index in wanted))
    try:
        there = {device.id: device for device in jax.devices(platform)}
    except RuntimeError as no_backend:
        raise DeviceError(
            message(
                "Devices must exist on this machine.",
                f"devices={list(names)}, but JAX has no {platform!r} platform; it has {_available()}",
                f"phalanx.MirroredStrategy(devices={_available()!r})",
            )
        ) from no_backend
    missing = [f"{platform}:{index}" for _, index in wanted if index not in there]
    if missing:
        raise DeviceError(_missing_text(platform, wanted, missing, len(there)))
    return [there[index] for _, index in wanted]


def of_all_workers() -> list[jax.Device]:
    """Every device of every worker, in worker order."""
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))


def steps_in_flight(devices: Sequence[jax.Device]) -> int:
    """How many dispatched steps may be unfinished while the next one is being prepared.

    XLA's CPU collectives wait on a small thread pool and deadlock when many steps are queued, so CPU
    replicas keep one step behind; accelerators order their own queues, and a few steps hide the host.
    """
    return 1 if devices[0].platform == "cpu" else 8


def _parse(names: Sequence[str]) -> list[tuple[str, int]]:
    if (
        isinstance(names, str)
        or not isinstance(names, Sequence)
        or not all(isinstance(n, str) for n in names)
    ):
        example = [names] if isinstance(names, str) else ["cpu:0", "cpu:1"]
        raise DeviceError(
            message(
                "devices is a list of Keras device names.",
                f"devices={names!r} of type {type(names).__name__}",
                f"phalanx.MirroredStrategy(devices={example!r})",
            )
        )
    if not names:
        raise DeviceError(
            message(
                "A strategy needs at least one device.",
                "devices=[] (an empty list)",
                "phalanx.MirroredStrategy()   # every local device",
            )
        )
    parsed = []
    for name in names:
        match = _NAME.fullmatch(name.strip().lower().lstrip("/").removeprefix("device:"))
        if match is None:
            raise DeviceError(
                message(
                    "A device name is a platform and a number, as keras.distribution.list_devices() has it.",
                    f"{name!r} in devices={list(names)}",
                    'phalanx.MirroredStrategy(devices=["cpu:0", "cpu:1"])',
                )
            )
        parsed.append((match["platform"], int(match["index"])))
    twice = sorted({f"{p}:{i}" for p, i in parsed if parsed.count((p, i)) > 1})
    if twice:
        unique = list(dict.fromkeys(f"{p}:{i}" for p, i in parsed))
        raise DeviceError(
            message(
                "Each device holds one replica, so each name stands once.",
                f"{', '.join(twice)} twice in devices={list(names)}",
                f"phalanx.MirroredStrategy(devices={unique!r})",
            )
        )
    if len({platform for platform, _ in parsed}) > 1:
        raise DeviceError(
            message(
                "All replicas of a strategy run on one kind of device.",
                f"devices={list(names)}",
                f"phalanx.MirroredStrategy(devices={[n for n in names if n.startswith(parsed[0][0])]!r})",
            )
        )
    return parsed


def _make_cpu_devices(count: int) -> None:
    """Have at least `count` CPU devices if JAX has not started; otherwise leave all as it is."""
    if has_started():
        return
    forced = _FORCED.search(env.read("XLA_FLAGS") or "")
    already = jax.config.jax_num_cpu_devices  # where it is set, JAX ignores the flag
    if already < 0:
        already = int(forced.group(1)) if forced else 1
    if count > already:
        env.set_default("NPROC", str(max(machine.cpu_count(), 2 * count)))
        jax.config.update("jax_num_cpu_devices", count)


def _available() -> list[str]:
    return [name_of(device) for device in jax.local_devices()]


def _missing_text(platform: str, wanted: list[tuple[str, int]], missing: list[str], have: int) -> str:
    if platform == "cpu":
        script = procs.current_script() or "train.py"
        return message(
            "CPU replicas are made when JAX starts; later their number is fixed.",
            f"{', '.join(missing)} wanted, but JAX started with {have} CPU device{'s'[: have != 1]}",
            f"phalanx run --replicas {1 + max(i for _, i in wanted)} {script}",
        )
    return message(
        "Devices must exist on this machine.",
        f"{', '.join(missing)} wanted, but there are {have} {platform} devices: {_available()}",
        f"phalanx.MirroredStrategy(devices={_available()[: len(wanted)]!r})",
    )
