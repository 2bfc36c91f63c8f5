"""ClusterSpec: the workers of a run, their addresses, and which of them this one is."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import ClusterError, message
from phalanx.text import quote, table
from phalanx.world import World

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_LOOPBACK = re.compile(r"127(\.[0-9]{1,3}){0,3}|(.*\.)?localhost(\.localdomain)?|ip6-(localhost|loopback)")
_EVERYWHERE = ("0.0.0.0", "0", "::", "*")  # every interface of a machine: nothing that a peer can reach
_MOST_LINES = 16


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The workers of a run, the chief first, and which of them this process is; `print` it to read it.

    A worker is one host program. Workers meet at the coordinator's address, which is the chief's. A cluster
    of one is an ordinary cluster.

    Args:
        workers: Host and port of each worker in the order of their indices; a port is None where nobody needs
            one. Only the coordinator's, where the environment names no other (see `count`).
        source: The environment that says so.
        index: Which worker this process is.
        chief: Which worker is the chief.
        count: How many workers there are, where `workers` holds the coordinator's address alone.
        notes: What a reader should know besides.

    Raises:
        ClusterError: An index, address, port or host that cannot be right.

    Example:
        >>> spec = ClusterSpec(workers=(("a", 2222), ("b", 2222)), source="TF_CONFIG", index=1)
        >>> spec.num_workers, spec.is_chief, spec.coordinator
        (2, False, 'a:2222')
        >>> print(spec)
        setting      value
        source       TF_CONFIG
        workers      2
        this worker  1
        chief        0
        coordinator  a:2222
        worker 0     a:2222, the chief
        worker 1     b:2222, this process
    """

    workers: tuple[tuple[str, int | None], ...]
    source: str
    index: int = 0
    chief: int = 0
    count: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.workers, tuple) or any(
            not isinstance(worker, tuple) or len(worker) != 2 for worker in self.workers
        ):
            raise _wrong(
                "Workers are a tuple of pairs of host and port.",
                f"{self.source}: workers={quote(self.workers)}",
                'ClusterSpec(workers=(("host1", 2222), ("host2", 2222)), source="mine")',
            )
        if not self.workers or (self.count is not None and len(self.workers) != 1):
            raise _wrong(
                "A cluster has each worker's address, or the coordinator's and a number of workers.",
                f"{self.source}: {len(self.workers)} addresses, count={quote(self.count)}",
                'ClusterSpec(workers=(("host1", 2222),), count=2, source="mine")',
            )
        if not _whole(self.num_workers, 1, None):
            raise _wrong(
                "A number of workers is a whole number, 1 or more.",
                f"{self.source}: {quote(self.count)} workers",
                'ClusterSpec(workers=(("host1", 2222),), count=2, source="mine")',
            )
        for what, index in (("this worker's index", self.index), ("the chief's index", self.chief)):
            if not _whole(index, 0, self.num_workers - 1):
                raise _wrong(
                    f"Indices of {self.num_workers} workers are 0 to {self.num_workers - 1}.",
                    f"{self.source}: {what} is {quote(index)}",
                    f"index {self.num_workers - 1} for the last of the workers",
                )
        if self.count is not None and self.chief != 0:
            raise _wrong(
                "Where only the coordinator's address is known, worker 0 is the chief.",
                f"{self.source}: the chief is worker {self.chief}",
                'ClusterSpec(workers=(("host1", 2222),), count=2, source="mine")',
            )
        for index, (host, port) in enumerate(self.workers):
            _check_address(f"{self.source}: worker {index}", host, port)
        _check_together(self.source, self.workers)
        portless = [index for index, (_, port) in enumerate(self.workers) if port is None]
        if portless and self.num_workers > 1:
            host = self.workers[portless[0]][0]
            raise _wrong(
                "Workers that meet have ports.",
                f"{self.source}: worker {portless[0]} is at {join(host, None)} without one",
                join(host, 2222),
            )

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return len(self.workers) if self.count is None else self.count

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief, who writes what is written once."""
        return self.index == self.chief

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each known address as `host:port`, in the order of `workers`."""
        return tuple(join(host, port) for host, port in self.workers)

    @property
    def coordinator(self) -> str | None:
        """Where the workers meet, as `host:port`; None for a cluster of one that has no port."""
        host, port = self.workers[0 if self.count is not None else self.chief]
        return None if port is None else join(host, port)

    def world(self, replicas_per_process: int = 1) -> World:
        """The processes of this cluster with a number of replicas each."""
        return World(
            processes=self.num_workers, process=self.index, replicas_per_process=replicas_per_process
        )

    def __str__(self) -> str:
        rows = [
            ("source", self.source),
            ("workers", str(self.num_workers)),
            ("this worker", str(self.index)),
            ("chief", str(self.chief)),
            ("coordinator", self.coordinator or "none: a cluster of one"),
        ]
        if self.count is None:
            shown = _shown(self.num_workers, self.chief, self.index)
            addresses = self.addresses
            for index in shown:
                chief = ", the chief" if index == self.chief else ""
                own = ", this process" if index == self.index else ""
                rows.append((f"worker {index}", f"{addresses[index]}{chief}{own}"))
            if len(shown) < self.num_workers:
                rows.append(("...", f"{self.num_workers - len(shown)} more"))
        elif self.count > 1:
            rows.append(("other workers", "addresses unknown; they meet at the coordinator"))
        return table(("setting", "value"), rows + [("note", note) for note in self.notes])


def join(host: str, port: int | None) -> str:
    """An address as text.

    Args:
        host: Name or address; an IPv6 address is put in brackets.
        port: Number, or None to leave it out.

    Returns:
        `host:port`.

    Example:
        >>> join("fe80::1", 2222), join("a", None)
        ('[fe80::1]:2222', 'a')
    """
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a name or address means the machine on which it is read.

    A name that a hosts file maps to such an address is not seen here: that takes a question to the network.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.1.1", "::1", "node1", "10.0.0.1")]
        [True, True, True, False, False]
    """
    if _LOOPBACK.fullmatch(host.lower()):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_host(host: str) -> bool:
    """Whether a text can be a host: a name of letters, digits, dots and dashes, or an IP address.

    Example:
        >>> [is_host(text) for text in ("node-1.example", "fe80::1", "", "$(id)", "two words")]
        [True, True, False, False, False]
    """
    if ":" not in host:
        return _NAME.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return re.fullmatch(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?", host) is not None


def _check_address(who: str, host: object, port: object) -> None:
    if host == "":
        raise _wrong("A worker has a host name or address.", f"{who} has none", "host1:2222")
    if host in _EVERYWHERE:
        raise _wrong(
            "A worker's address is one that the others can reach, not every interface of a machine.",
            f"{who} is at {quote(host)}",
            "hostname -f   # the name to write instead",
        )
    if not isinstance(host, str) or not is_host(host):
        raise _wrong(
            "A host is a name of letters, digits, dots and dashes, or an IP address.",
            f"{who} is at {quote(host)}",
            "host1:2222",
        )
    if port is not None and not _whole(port, 1, 65535):
        raise _wrong("Ports are 1 to 65535.", f"{who} is at port {quote(port)}", f"{join(host, 2222)}")


def _check_together(source: str, workers: Sequence[tuple[str, int | None]]) -> None:
    seen: dict[tuple[str, int | None], int] = {}
    for index, (host, port) in enumerate(workers):
        first = seen.setdefault((_same_machine(host), port), index)
        if first != index:
            raise _wrong(
                "Each worker has an address of its own.",
                f"{source}: workers {first} and {index} are both at {join(host, port)}",
                f"{join(host, 2222)} and {join(host, 2223)}   # two ports, where they share a machine",
            )
    near = [index for index, (host, _) in enumerate(workers) if is_loopback(host)]
    far = [index for index, (host, _) in enumerate(workers) if not is_loopback(host)]
    if near and far:
        raise _wrong(
            "Workers on several machines have addresses that mean the same on each of them.",
            f"{source}: worker {near[0]} is at {join(*workers[near[0]])}, which is every machine itself, "
            f"and worker {far[0]} is at {join(*workers[far[0]])}",
            f"hostname -f   # on the machine of worker {near[0]}: the name to write instead",
        )


def _same_machine(host: str) -> str:
    host = host.lower().rstrip(".")
    return "127.0.0.1" if host == "localhost" else host


def _shown(count: int, *wanted: int) -> list[int]:
    if count <= _MOST_LINES:
        return list(range(count))
    return sorted({*range(_MOST_LINES // 2), *wanted, count - 1})


def _whole(value: object, low: int, high: int | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)


def _wrong(rule: str, received: str, paste: str) -> ClusterError:
    return ClusterError(message(rule, received, paste))
