"""Slurm's short form for lists of hosts, and for tasks per node."""

from __future__ import annotations

import itertools
import math
import re

from phalanx.cluster.fields import wrong
from phalanx.errors import ClusterError
from phalanx.text import quote

MOST_HOSTS = 65536
_EXAMPLE = "scontrol show hostnames   # what Slurm itself makes of it"


def expand(field: str, text: str) -> tuple[str, ...]:
    """Expand a list of hosts.

    Numbers keep the zeros before them. Of several brackets in one name, the last runs fastest.

    Args:
        field: Name of the variable, for errors.
        text: Its value.

    Returns:
        The hosts in order.

    Raises:
        ClusterError: Brackets, ranges or names that are none, or more than 65,536 hosts.

    Example:
        >>> expand("SLURM_STEP_NODELIST", "a1,b[2-3,09]")
        ('a1', 'b2', 'b3', 'b09')
        >>> expand("SLURM_STEP_NODELIST", "r[1-2]n[1-2]")
        ('r1n1', 'r1n2', 'r2n1', 'r2n2')

    References:
        https://slurm.schedmd.com/scontrol.html (hostlist, hostnames)
    """
    items = _split(field, text)
    hosts: list[str] = []
    for item in items:
        pieces = [_piece(field, part, text) for part in re.split(r"(\[[^\[\]]*\])", item) if part]
        if len(hosts) + math.prod(len(piece) for piece in pieces) > MOST_HOSTS:
            raise _wrong(field, f"A list of hosts has {MOST_HOSTS} at most.", text)
        hosts += ["".join(parts) for parts in itertools.product(*pieces)]
    return tuple(hosts)


def tasks_per_node(field: str, text: str, nodes: int) -> tuple[int, ...]:
    """Expand numbers of tasks per node.

    Args:
        field: Name of the variable, for errors.
        text: Its value: numbers with commas, `2(x3)` for three nodes of two.
        nodes: How many nodes there are.

    Returns:
        Tasks of each node.

    Raises:
        ClusterError: Other text, or numbers for more or fewer nodes.

    Example:
        >>> tasks_per_node("SLURM_TASKS_PER_NODE", "2(x2),1", nodes=3)
        (2, 2, 1)
    """
    paste = f"export {field}='2(x{nodes})'"
    runs: list[tuple[int, int]] = []
    for part in text.split(",", nodes):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part.strip())
        if match is None:
            raise wrong(f"{field} is numbers like 2(x3),1.", f"{field}={quote(text)}", paste)
        runs.append((int(match[1]), int(match[2] or 1)))
    said = sum(times for _, times in runs)
    if said != nodes:
        raise wrong(
            f"{field} has a number for each node.",
            f"{field}={quote(text)}, for {said} nodes, and {nodes} nodes in the list",
            paste,
        )
    return tuple(tasks for tasks, times in runs for _ in range(times))


def _split(field: str, text: str) -> list[str]:
    """Cut at the commas that stand outside brackets."""
    items, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise _wrong(field, "Brackets of a list of hosts open and close, and hold numbers only.", text)
        if letter == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
    items.append(text[start:])
    if depth:
        raise _wrong(field, "Brackets of a list of hosts open and close, and hold numbers only.", text)
    if not all(items):
        raise _wrong(field, "Between the commas of a list of hosts stand hosts.", text)
    return items


def _piece(field: str, part: str, text: str) -> list[str]:
    if not part.startswith("["):
        return [part]
    numbers: list[str] = []
    for span in part[1:-1].split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", span)
        if match is None:
            raise _wrong(field, "Brackets of a list of hosts hold numbers and ranges.", text)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or len(numbers) + int(last) - int(first) >= MOST_HOSTS:
            raise _wrong(field, f"A range of hosts goes up, over {MOST_HOSTS} hosts at most.", text)
        numbers += [str(value).zfill(len(first)) for value in range(int(first), int(last) + 1)]
    return numbers


def _wrong(field: str, rule: str, text: str) -> ClusterError:
    return wrong(rule, f"{field}={quote(text)}", _EXAMPLE)
