"""What the workers of a check found, judged: pure, from their reports to the findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.cluster.spec import ClusterSpec, is_loopback, join
from phalanx.errors import message
from phalanx.host import machine
from phalanx.text import many, quote, table

MOST_CLOCK = 1.0
"""Seconds that clocks may differ."""

_ALL_PAIRS = 8  # workers up to which every pair is measured


@dataclass(frozen=True, kw_only=True)
class Line:
    """The way from one worker to another.

    Args:
        source: Who connects and sends.
        target: To whom.
        milliseconds: Time of a byte there and back.
        megabytes: Million bytes a second.
        error: Why there is no way, if there is none.
    """

    source: int
    target: int
    milliseconds: float = 0.0
    megabytes: float = 0.0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found; `print` it to read it.

    Args:
        workers: How many there are.
        findings: Three-part texts; empty where nothing is wrong.
        lines: The ways that were measured.
        checked: What was looked at, in words.
    """

    workers: int
    findings: Sequence[str]
    lines: Sequence[Line] = ()
    checked: Sequence[str] = field(default_factory=tuple)

    def __str__(self) -> str:
        parts = list(self.findings)
        if self.lines:
            rows = [
                (each.source, each.target, "-", "-")
                if each.error
                else (each.source, each.target, f"{each.milliseconds:.2f}", f"{each.megabytes:.0f}")
                for each in self.lines
            ]
            parts.append(table(("from", "to", "ms there and back", "MB/s"), rows, align="rrrr"))
        about = f": {', '.join(self.checked)}" if self.checked else ""
        verdict = f"{many(len(self.findings), 'finding')}" if self.findings else "nothing is wrong"
        parts.append(f"{many(self.workers, 'worker')}, {verdict}{about}")
        return "\n\n".join(parts)


def pairs(workers: int) -> list[tuple[int, int]]:
    """Which ways are measured: all, or in a large cluster those round the ring and to the chief.

    Example:
        >>> pairs(2), len(pairs(8)), len(pairs(100))
        ([(0, 1), (1, 0)], 56, 394)
    """
    if workers <= _ALL_PAIRS:
        return [(one, other) for one in range(workers) for other in range(workers) if one != other]
    near = [(one, (one + 1) % workers) for one in range(workers)] + [(0, one) for one in range(1, workers)]
    return sorted({way for one, other in near for way in ((one, other), (other, one))})


def names(spec: ClusterSpec, found: Mapping[str, Sequence[str]]) -> list[str]:
    """Whether names mean the same machine everywhere.

    Args:
        spec: The cluster.
        found: For each host of it, the addresses that this worker's machine gives to the name.

    Returns:
        Findings.

    Example:
        >>> spec = ClusterSpec(workers=(("a", 1), ("b", 1)), source="mine")
        >>> names(spec, {"a": ["127.0.1.1"], "b": ["10.0.0.2"]})[0].splitlines()[1]
        '  received: on worker 0, a is 127.0.1.1: worker 0 would wait there, and no other worker gets there'
    """
    findings: list[str] = []
    if all(is_loopback(host) for host, _ in spec.workers):
        return findings
    for index, (host, _) in enumerate(spec.workers):
        addresses = found.get(host, ())
        if not addresses:
            findings.append(
                message(
                    "Every worker's name has an address on every machine.",
                    f"on worker {spec.index}, {host} (worker {index}) has none",
                    f"getent hosts {host}   # or write addresses instead of names",
                )
            )
        elif any(map(is_loopback, addresses)):
            findings.append(_itself(spec, index, next(filter(is_loopback, addresses))))
    return findings


def itself(spec: ClusterSpec, found: Mapping[str, Sequence[str]]) -> str | None:
    """Whether a worker would listen, or knock, at its own machine instead of at the cluster.

    Args:
        spec: The cluster.
        found: Addresses that this machine gives to some of its names; none for a name that has none yet.

    Returns:
        The finding for the first name that means loopback and nothing else, or None.
    """
    if all(is_loopback(host) for host, _ in spec.workers):
        return None
    for index, (host, _) in enumerate(spec.workers):
        addresses = found.get(host, ())
        if addresses and all(map(is_loopback, addresses)):
            return _itself(spec, index, addresses[0])
    return None


def _itself(spec: ClusterSpec, index: int, address: str) -> str:
    host = spec.workers[index][0]
    return message(
        "In a cluster of several machines no name means the machine that reads it.",
        f"on worker {spec.index}, {host} is {address}: worker {index} would wait there, "
        "and no other worker gets there",
        f"sed -n '/{host}/p' /etc/hosts   # take {host} away from {address}, or write its address",
    )


def cards(found: Mapping[int, Mapping[str, str]], chief: int) -> list[str]:
    """Whether all run the same.

    Args:
        found: Each worker's card.
        chief: Whose card the others are compared with.

    Returns:
        One finding for each thing that differs.
    """
    findings = []
    wanted = found[chief]
    for name in sorted({name for card in found.values() for name in card if name in machine.CARD}):
        odd = {i: card.get(name, "") for i, card in found.items() if card.get(name) != wanted.get(name)}
        if odd:
            those = ", ".join(f"worker {i} has {quote(text)}" for i, text in list(odd.items())[:8])
            findings.append(
                message(
                    f"All workers have the same {name}.",
                    f"the chief has {quote(wanted.get(name, ''))}, {those}",
                    f"pip install {name}=={wanted.get(name, '')}   # on those"
                    if name in machine.PACKAGES
                    else "copy it from the chief to all others",
                )
            )
    return findings


def clocks(found: Mapping[int, float]) -> list[str]:
    """Whether clocks agree.

    Args:
        found: For each worker, seconds that its clock is ahead of the chief's.

    Returns:
        Findings.
    """
    return [
        message(
            f"Clocks differ by {MOST_CLOCK:g} s at most.",
            f"worker {index}'s clock is {abs(ahead):.1f} s "
            f"{'ahead of' if ahead > 0 else 'behind'} the chief's",
            f"timedatectl set-ntp true   # on the machine of worker {index}",
        )
        for index, ahead in sorted(found.items())
        if abs(ahead) > MOST_CLOCK
    ]


def ways(found: Sequence[Line], hosts: Mapping[int, tuple[str, int]]) -> list[str]:
    """Whether everybody reaches everybody.

    Args:
        found: The ways that were tried.
        hosts: Where each worker listened.

    Returns:
        Findings.
    """
    findings = []
    for each in found:
        if each.error:
            host, port = hosts[each.target]
            findings.append(
                message(
                    "Every worker reaches every other on any port: the kernel chooses those of collectives.",
                    f"from worker {each.source} to worker {each.target} ({join(host, port)}): {each.error}",
                    f"ping {host}   # from worker {each.source}; then its firewall, in both directions",
                )
            )
    return findings


def shared(folder: str, blind: Mapping[int, str]) -> list[str]:
    """Whether a folder is the same on all.

    Args:
        folder: Its path.
        blind: Workers that do not see the chief's file in it, or could not write, each with the reason.

    Returns:
        Findings.
    """
    return [
        message(
            "A shared directory is one directory, which every worker reads and writes.",
            f"{quote(folder)} on worker {index}: {why}",
            f"df {folder if folder.isidentifier() or folder.replace('/', '').isalnum() else '.'}   "
            f"# on worker {index} and on the chief: the same file system?",
        )
        for index, why in sorted(blind.items())
    ]
