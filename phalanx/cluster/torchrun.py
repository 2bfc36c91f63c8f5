"""MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE: torchrun's variables, which others set too."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.fields import MOST_WORKERS, address, incomplete, number, present, wrong
from phalanx.cluster.spec import ClusterSpec, is_loopback
from phalanx.text import quote

SOURCE = "torchrun"
_NEEDED = {
    "MASTER_ADDR": "export MASTER_ADDR=host1",
    "MASTER_PORT": "export MASTER_PORT=29500",
    "RANK": "export RANK=0   # another in each process",
    "WORLD_SIZE": "export WORLD_SIZE=2",
}


def parse(environ: Mapping[str, str]) -> ClusterSpec | None:
    """Read torchrun's variables: the coordinator's address, the number of workers and this one's index.

    The other workers' addresses are not among them. Under torchrun itself `MASTER_PORT` is taken by its own
    store, so that the coordinator's port is the next one.

    Args:
        environ: The environment.

    Returns:
        The cluster, or None where none of the four is set.

    Raises:
        ClusterError: One is missing, or is no number in its range.

    Example:
        >>> spec = parse({"MASTER_ADDR": "a", "MASTER_PORT": "29500", "RANK": "3", "WORLD_SIZE": "4"})
        >>> spec.num_workers, spec.index, spec.coordinator
        (4, 3, 'a:29500')

    References:
        https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    found = present(environ, _NEEDED)
    if not found:
        return None
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise incomplete(
            "torchrun's variables stand together.",
            f"{', '.join(found)} without {', '.join(missing)}",
            f"{_NEEDED[missing[0]]}   # or: unset {' '.join(found)}",
        )
    count = number("WORLD_SIZE", environ["WORLD_SIZE"], 1, MOST_WORKERS, _NEEDED["WORLD_SIZE"])
    index = number("RANK", environ["RANK"], 0, count - 1, f"export RANK={count - 1}   # 0 to {count - 1}")
    host, inside = address("MASTER_ADDR", environ["MASTER_ADDR"], _NEEDED["MASTER_ADDR"])
    if inside is not None:
        raise wrong(
            "MASTER_ADDR is a host; its port is MASTER_PORT.",
            f"MASTER_ADDR={quote(environ['MASTER_ADDR'])}",
            f"export MASTER_ADDR={host} MASTER_PORT={inside}",
        )
    paste = _NEEDED["MASTER_PORT"]
    if environ["MASTER_PORT"].startswith("tcp://"):
        paste += "   # this value is Kubernetes's, of a service that is called master"
    port = number("MASTER_PORT", environ["MASTER_PORT"], 1, 65535, paste)
    _check_near(environ, count, host)
    notes = []
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and count > 1:
        following = port + 1 if port < 65535 else port - 1
        notes.append(f"port {port} is that of torchrun's own store; the workers meet at {following}")
        port = following
    return ClusterSpec(workers=((host, port),), count=count, index=index, source=SOURCE, notes=tuple(notes))


def _check_near(environ: Mapping[str, str], count: int, host: str) -> None:
    """A loopback address serves only where all workers are on one machine."""
    text = environ.get("LOCAL_WORLD_SIZE")
    if not text:
        return
    local = number("LOCAL_WORLD_SIZE", text, 1, count, f"export LOCAL_WORLD_SIZE={count}")
    if local < count and is_loopback(host):
        raise wrong(
            "Workers on several machines meet at an address that means the same on each of them.",
            f"MASTER_ADDR={quote(host)}, which is every machine itself, and {local} of {count} workers here",
            "export MASTER_ADDR=host1   # the name that `hostname -f` prints on the machine of rank 0",
        )
