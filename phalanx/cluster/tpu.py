"""Cloud TPU: the hosts of a slice, as GKE or a start script puts them into the environment."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from phalanx.cluster.fields import (
    MOST_WORKERS,
    address,
    first,
    incomplete,
    items,
    number,
    port_of,
    present,
    wrong,
)
from phalanx.cluster.spec import ClusterSpec
from phalanx.text import quote

SOURCE = "TPU"
PORT = 8482
_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
_INDEX = ("TPU_WORKER_ID", "CLOUD_TPU_TASK_ID")
_BOUNDS = ("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS")
_SLICES = ("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS")
_PASTE = "export TPU_WORKER_HOSTNAMES=host0,host1 TPU_WORKER_ID=0   # another id on each host"


def parse(environ: Mapping[str, str]) -> ClusterSpec | None:
    """Read a slice's hosts and this one's number; of several slices, the coordinator and how many hosts.

    On GKE these are variables. On TPU machines outside of it they are in Google's metadata only, which
    nothing here asks; a start script that exports them is read.

    Args:
        environ: The environment.

    Returns:
        The cluster, or None where nothing speaks of a TPU slice.

    Raises:
        ClusterError: Hosts without a number, or a number without hosts.

    Example:
        >>> spec = parse({"TPU_WORKER_HOSTNAMES": "t0,t1", "TPU_WORKER_ID": "1"})
        >>> spec.index, spec.addresses
        (1, ('t0:8482', 't1:8482'))

    References:
        https://cloud.google.com/kubernetes-engine/docs/how-to/tpus
    """
    hosts_name, hosts_text = first(environ, _HOSTS)
    index_name, index_text = first(environ, _INDEX)
    slices = present(environ, _SLICES)
    if hosts_name is None:
        _check_alone(environ, index_name, index_text, slices)
        return None
    if hosts_text == "localhost" and index_name is None and not slices:
        return ClusterSpec(workers=(("localhost", None),), source=SOURCE)
    if index_name is None:
        raise incomplete("A TPU host knows its number.", f"{hosts_name} without TPU_WORKER_ID", _PASTE)
    hosts = [address(hosts_name, part, _PASTE)[0] for part in items(hosts_name, hosts_text, _PASTE)]
    index = number(index_name, index_text, 0, len(hosts) - 1, f"export {index_name}={len(hosts) - 1}")
    if slices:
        return _of_slices(environ, hosts, index)
    if len(hosts) == 1:
        return ClusterSpec(workers=((hosts[0], None),), source=SOURCE)
    port = port_of(environ, PORT)
    return ClusterSpec(workers=tuple((host, port) for host in hosts), index=index, source=SOURCE)


def _of_slices(environ: Mapping[str, str], hosts: list[str], index: int) -> ClusterSpec:
    missing = [name for name in _SLICES if not environ.get(name)]
    if missing:
        raise incomplete(
            "Several slices have a number, a coordinator and a number of slices.",
            f"{', '.join(present(environ, _SLICES))} without {', '.join(missing)}",
            f"export {missing[0]}={'host0' if missing[0] == _SLICES[2] else '0'}",
        )
    slices = number(_SLICES[0], environ[_SLICES[0]], 1, MOST_WORKERS, f"export {_SLICES[0]}=2")
    own = number(_SLICES[1], environ[_SLICES[1]], 0, slices - 1, f"export {_SLICES[1]}={slices - 1}")
    host, _ = address(_SLICES[2], environ[_SLICES[2]], f"export {_SLICES[2]}=host0")
    count = slices * len(hosts)
    return ClusterSpec(
        workers=((host, port_of(environ, PORT)),),
        count=count,
        index=own * len(hosts) + index,
        source=SOURCE,
        notes=(f"{slices} slices of {len(hosts)} hosts; this is slice {own}",),
    )


def _check_alone(
    environ: Mapping[str, str], index_name: str | None, index_text: str, slices: list[str]
) -> None:
    """Without names of hosts: nothing to say, unless something speaks of more than one host."""
    if index_name and number(index_name, index_text, 0, MOST_WORKERS, _PASTE) > 0:
        received = f"{index_name}={index_text.strip()} without TPU_WORKER_HOSTNAMES"
    elif slices:
        received = f"{', '.join(slices)} without TPU_WORKER_HOSTNAMES"
    else:
        bounds_name, bounds_text = first(environ, _BOUNDS)
        if bounds_name is None or not _several(bounds_name, bounds_text):
            return
        received = f"{bounds_name}={quote(bounds_text)} is several hosts, without TPU_WORKER_HOSTNAMES"
    raise incomplete(
        "Hosts of a TPU slice know each other's names; outside of GKE only Google's metadata has them.",
        received,
        _PASTE,
    )


def _several(name: str, text: str) -> bool:
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6}){0,3}", text):
        raise wrong(f"{name} is numbers like 2,2,1.", f"{name}={quote(text)}", f"export {name}=1,1,1")
    return math.prod(int(part) for part in text.split(",")) > 1
