"""Accelerators of this machine, found without JAX, without CUDA and without starting any of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from phalanx.host import files

_NODES = (
    "/proc/driver/nvidia/gpus/*",
    "/dev/nvidia[0-9]*",
    "/usr/lib/wsl/lib/libcuda.so",
    "/dev/kfd",
    "/dev/accel[0-9]*",
    "/dev/vfio/[0-9]*",
)
_FACTS = (
    "/sys/class/kfd/kfd/topology/nodes/*/gpu_id",  # 0 on a processor; unreadable where a container hides it
    "/sys/bus/pci/devices/*/vendor",
    "/sys/bus/pci/devices/*/device",
)
_PLUGINS = {"NVIDIA GPU": r"jax_cuda\d*_plugin", "AMD GPU": r"jax_rocm\d*_plugin", "TPU": r"libtpu"}
_GOOGLE = "0x1ae0"
_TPU_DEVICES = {  # PCI number of a TPU chip -> devices that JAX shows for it
    "0x0027": 2,  # v2, v3
    "0x0056": 1,
    "0x005e": 1,  # v4
    "0x0062": 1,  # v5p
    "0x0063": 1,  # v5e
    "0x006f": 1,  # v6e
    "0x0076": 2,  # 7x
}


@dataclass(frozen=True)
class Accelerators:
    """What a look at the machine found.

    Args:
        kind: `"NVIDIA GPU"`, `"AMD GPU"`, `"TPU"`, or None where there is none.
        count: How many devices JAX would show.
        usable: False if the package that lets JAX use them is not installed.
        devices_per_chip: 2 for the TPUs whose chips count as two devices.
    """

    kind: str | None = None
    count: int = 0
    usable: bool = False
    devices_per_chip: int = 1


def look() -> Accelerators:
    """Look for accelerators and for JAX's plugins.

    Returns:
        What was found; see `judge`.
    """
    listing = {path: "" for pattern in _NODES for path in files.matches(pattern)}
    listing |= {path: _read(path) for pattern in _FACTS for path in files.matches(pattern)}
    return judge(listing, {name for folder in sys.path for name in _names(folder)})


def judge(listing: Mapping[str, str], installed: Collection[str]) -> Accelerators:
    """Decide from paths of this machine and from installed packages what JAX will find.

    Args:
        listing: Paths that exist, with their text where it matters.
        installed: Names of folders on Python's path.

    Returns:
        The accelerators.

    Example:
        >>> gpus = {"/dev/nvidia0": "", "/dev/nvidia1": ""}
        >>> found = judge(gpus, ["jax", "jax_cuda13_plugin"])
        >>> found.kind, found.count, found.usable
        ('NVIDIA GPU', 2, True)
        >>> judge(gpus, ["jax"]).usable
        False
    """
    per_chip = 1
    if count := _nvidia(listing):
        kind = "NVIDIA GPU"
    elif count := _amd(listing):
        kind = "AMD GPU"
    else:
        chips, per_chip = _tpu(listing)
        kind, count = "TPU", chips * per_chip
    if not count:
        return Accelerators()
    usable = any(re.fullmatch(_PLUGINS[kind], name) for name in installed)
    return Accelerators(kind, count, usable, per_chip)


def _nvidia(listing: Mapping[str, str]) -> int:
    """A driver may list GPUs that a container may not open, and nodes may be missing until first use."""
    known = _below(listing, "/proc/driver/nvidia/gpus/")
    nodes = _below(listing, "/dev/nvidia")
    if known and nodes:
        return min(len(known), len(nodes))
    return len(known) or len(nodes) or len(_below(listing, "/usr/lib/wsl/"))


def _amd(listing: Mapping[str, str]) -> int:
    numbers = [listing[path] for path in _below(listing, "/sys/class/kfd/")]
    return sum(number not in ("", "0") for number in numbers) if "/dev/kfd" in listing else 0


def _tpu(listing: Mapping[str, str]) -> tuple[int, int]:
    """Chips that can be opened, and devices per chip."""
    chips = [
        listing.get(path.removesuffix("vendor") + "device", "")
        for path in _below(listing, "/sys/bus/pci/")
        if path.endswith("/vendor") and listing[path] == _GOOGLE
    ]
    chips = [number for number in chips if number in _TPU_DEVICES]  # Google's network cards are not TPUs
    nodes = _below(listing, "/dev/accel")
    if chips:
        nodes = nodes or _below(listing, "/dev/vfio/")
        return min(len(nodes), len(chips)), _TPU_DEVICES[chips[0]]
    return len(nodes), 1


def _below(listing: Mapping[str, str], start: str) -> list[str]:
    return [path for path in listing if path.startswith(start)]


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []
