"""MPI: the processes of mpirun or mpiexec, by the variables of Open MPI, PMI and PMIx."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from phalanx.cluster.fields import MOST_WORKERS, address, incomplete, number, wrong
from phalanx.cluster.spec import ClusterSpec, is_loopback
from phalanx.text import quote

SOURCE = "MPI"
LAUNCHERS = (  # rank, size, ranks of this machine: the first family that is there counts
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "", ""),  # PMIx keeps the size to itself
)
_URI = "OMPI_MCA_orte_hnp_uri"
_NAMESPACE = "PMIX_NAMESPACE"
_FIRST_PORT, _PORTS = 61440, 4096  # above what Linux gives out by itself
PASTE = "mpirun -x MASTER_ADDR=host1 -x MASTER_PORT=29500 python train.py   # the machine of rank 0"


def parse(environ: Mapping[str, str]) -> ClusterSpec | None:
    """Read rank and size, and from what the launcher says of itself where the ranks can meet.

    No MPI names the addresses of all ranks. The coordinator is, in this order: `MASTER_ADDR`; this machine,
    where all ranks are on it; the machine of Open MPI's own launcher, which is then also that of rank 0. The
    port is `MASTER_PORT`, or one that follows from the launcher's job.

    Args:
        environ: The environment.

    Returns:
        The cluster, or None where no MPI started this process.

    Raises:
        ClusterError: A rank without a size, numbers out of range, or no place to meet.

    Example:
        >>> spec = parse({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
        ...               "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"})
        >>> spec.num_workers, spec.index, spec.coordinator
        (2, 1, '10.96.0.1:62624')

    References:
        https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    """
    family = next((names for names in LAUNCHERS if environ.get(names[0]) or environ.get(names[1])), None)
    if family is None:
        return None
    rank_name, size_name, local_name = family
    for name, other in ((rank_name, size_name), (size_name, rank_name)):
        if not environ.get(name):
            raise incomplete(
                "MPI's rank and size stand together.", f"{other} without {name or 'a size'}", PASTE
            )
    size = number(size_name, environ[size_name], 1, MOST_WORKERS, PASTE)
    index = number(rank_name, environ[rank_name], 0, size - 1, PASTE)
    if size == 1:
        return ClusterSpec(workers=(("localhost", None),), source=SOURCE)
    local_text = environ.get(local_name)
    near = bool(local_text) and number(local_name, str(local_text), 1, size, PASTE) == size
    host, why = _meeting_place(environ, index, near)
    if host is None:
        raise incomplete(
            "Ranks on several machines need an address where they meet; this MPI names none.",
            f"{rank_name}={index}, {size_name}={size}, and neither MASTER_ADDR nor {_URI}",
            PASTE,
        )
    if local_text and not near and is_loopback(host):
        raise wrong(
            "Ranks on several machines meet at an address that means the same on each of them.",
            f"{quote(host)}, which is every machine itself, and {local_name}={local_text} of {size} ranks",
            PASTE,
        )
    port, how = _port(environ)
    notes = tuple(note for note in (why, how) if note)
    return ClusterSpec(workers=((host, port),), count=size, index=index, source=SOURCE, notes=notes)


def _meeting_place(environ: Mapping[str, str], index: int, near: bool) -> tuple[str | None, str]:
    given = environ.get("MASTER_ADDR")
    if given:
        host, port = address("MASTER_ADDR", given, PASTE)
        if port is not None:
            raise wrong(
                "MASTER_ADDR is a host; its port is MASTER_PORT.",
                f"MASTER_ADDR={quote(given)}",
                f"mpirun -x MASTER_ADDR={host} -x MASTER_PORT={port} python train.py",
            )
        return host, "coordinator: MASTER_ADDR"
    if near:
        return "127.0.0.1", "coordinator: all ranks are on this machine"
    uri = re.search(r"tcp://([^,:;\[\]]+)[,:]|tcp6://\[([^,\]]+)[,\]]", environ.get(_URI, "")[:4096])
    if uri:
        return uri[1] or uri[2], f"coordinator: mpirun's machine, by {_URI}; rank 0 must be there"
    space = re.fullmatch(r"(?:prterun|prte)-(.{1,253})-[0-9]+@[0-9]+", environ.get(_NAMESPACE, "")[:4096])
    if space:
        own = environ.get("PMIX_HOSTNAME") or space[1]
        if index == 0 and own != space[1]:
            raise wrong(
                "Where MPI names mpirun's machine alone, rank 0 is on it.",
                f"mpirun on {quote(space[1])}, by {_NAMESPACE}, and rank 0 on {quote(own)}",
                PASTE,
            )
        return space[1], f"coordinator: mpirun's machine, by {_NAMESPACE}; rank 0 must be there"
    return None, ""


def _port(environ: Mapping[str, str]) -> tuple[int, str]:
    if environ.get("MASTER_PORT"):
        return number("MASTER_PORT", environ["MASTER_PORT"], 1, 65535, PASTE), ""
    job = re.match(r"([0-9]{1,12})\.", environ.get(_URI, ""))
    if job:
        return _FIRST_PORT + int(job[1]) // 4096 % _PORTS, ""  # Open MPI's job ids are multiples of 4096
    space = environ.get(_NAMESPACE)
    if space:
        return _FIRST_PORT + zlib.crc32(space.encode(errors="surrogatepass")) % _PORTS, ""
    return _FIRST_PORT, "the port is the same for all such jobs; MASTER_PORT chooses another"
