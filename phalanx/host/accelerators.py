"""Accelerators of this machine, found without starting any of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from phalanx.host import files

_PATTERNS = {
    "nvidia": "/proc/driver/nvidia/gpus/*",
    "nvidia-nodes": "/dev/nvidia[0-9]*",
    "amd": "/sys/class/kfd/kfd/topology/nodes/*/gpu_id",
    "tpu": "/dev/accel[0-9]*",
}
_PLUGINS = {"gpu": ("jax-cuda", "jax-rocm"), "tpu": ("libtpu",)}


@dataclass(frozen=True)
class Accelerators:
    """What a look at the machine found.

    Args:
        kind: `"gpu"`, `"tpu"`, or None where there is neither.
        count: How many.
        usable: False if the package that lets JAX use them is not installed.
    """

    kind: str | None = None
    count: int = 0
    usable: bool = False


def look() -> Accelerators:
    """Look for accelerators and for JAX's plugins."""
    listing = {name: files.matches(pattern) for name, pattern in _PATTERNS.items()}
    installed = [d.metadata["Name"] or "" for d in importlib.metadata.distributions()]
    return judge(listing, installed)


def judge(listing: Mapping[str, Sequence[str]], installed: Collection[str]) -> Accelerators:
    """Decide from file listings and installed packages what JAX will find.

    Args:
        listing: Paths found per pattern name.
        installed: Names of installed packages.

    Returns:
        The accelerators.

    Example:
        >>> judge({"nvidia": ["0000:01:00.0", "0000:02:00.0"]}, ["jax", "jax-cuda13-plugin"])
        Accelerators(kind='gpu', count=2, usable=True)
    """
    gpus = len(listing.get("nvidia", ())) or len(listing.get("nvidia-nodes", ()))
    gpus = gpus or max(0, len(listing.get("amd", ())) - 1)  # the first node is the processor itself
    kind, count = ("gpu", gpus) if gpus else ("tpu", len(listing.get("tpu", ())))
    if not count:
        return Accelerators()
    usable = any(name.startswith(_PLUGINS[kind]) for name in installed)
    return Accelerators(kind, count, usable)
