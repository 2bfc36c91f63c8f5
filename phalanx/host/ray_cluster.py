"""A Ray cluster, joined by name; Ray is loaded here alone, and only by those who ask for it."""

from __future__ import annotations

import logging
from typing import Any

from phalanx.errors import SettingError, message


def join(address: str | None) -> Any:
    """Connect to a cluster that runs.

    Args:
        address: Its address, or None for the one that Ray finds.

    Returns:
        The module `ray`, connected.

    Raises:
        SettingError: Ray is not installed, or no cluster is found.
    """
    try:
        import ray
    except ImportError:
        raise SettingError(
            message("Ray is a package of its own.", "no package ray", "pip install 'phalanx[ray]'")
        ) from None
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # of several kinds, and of none of Ray's own
        raise SettingError(
            message(
                "Workers go to a Ray cluster that runs.",
                f"--address {address or 'auto'}: {str(error).splitlines()[0][:200]}",
                "ray start --head   # here, and on other machines: ray start --address=host:6379",
            )
        ) from None
    return ray


def own_address() -> str:
    """This node's address, as the cluster knows it; for those who run on the cluster."""
    import ray

    return str(ray.util.get_node_ip_address())
