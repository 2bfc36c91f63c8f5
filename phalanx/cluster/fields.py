"""Fields of an environment: whole numbers and addresses from text, or an error that names the field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from phalanx.cluster.spec import is_host
from phalanx.errors import ClusterError, message
from phalanx.text import quote

MOST_WORKERS = 65536
COORDINATOR_PORT = "JAX_COORDINATOR_PORT"  # JAX's own name for a port of the user's choice


class IncompleteError(ClusterError):
    """An environment that says a part of what it must; another environment may still be complete."""


def present(environ: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Those of the names that are set and not empty.

    Args:
        environ: The environment.
        names: Names of variables.

    Returns:
        The names that have a value, in order.

    Example:
        >>> present({"RANK": "0", "WORLD_SIZE": ""}, ("RANK", "WORLD_SIZE"))
        ['RANK']
    """
    return [name for name in names if environ.get(name)]


def first(environ: Mapping[str, str], names: Iterable[str]) -> tuple[str | None, str]:
    """The first of several names for the same thing that has a value.

    Args:
        environ: The environment.
        names: Names of variables.

    Returns:
        The name and its value; None and an empty text where none has one.

    Example:
        >>> first({"SLURM_NTASKS": "4"}, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
        ('SLURM_NTASKS', '4')
    """
    return next(((name, environ[name]) for name in present(environ, names)), (None, ""))


def number(field: str, text: str, low: int, high: int, paste: str) -> int:
    """A whole number from text; nothing is evaluated.

    Args:
        field: Name of the variable or of the place in it.
        text: Its value.
        low: Smallest number allowed.
        high: Largest number allowed.
        paste: The next line to type, if it is none.

    Returns:
        The number.

    Raises:
        ClusterError: Not a whole number, or outside the range.

    Example:
        >>> number("RANK", "3", 0, 7, "export RANK=0")
        3
    """
    if not re.fullmatch(r"[0-9]{1,12}", text.strip()):
        raise wrong(f"{field} is a whole number, {low} to {high}.", f"{field}={quote(text)}", paste)
    value = int(text)
    if not low <= value <= high:
        raise wrong(f"{field} is {low} to {high}.", f"{field}={quote(text)}", paste)
    return value


def address(field: str, text: str, paste: str) -> tuple[str, int | None]:
    """Host and port from text.

    Args:
        field: Name of the variable or of the place in it.
        text: `host:port`, `host`, `[IPv6]:port` or a bare IPv6 address.
        paste: The next line to type, if it is none of these.

    Returns:
        Host, and port or None.

    Raises:
        ClusterError: No host, a host that is none, or a port that is none.

    Example:
        >>> address("TF_CONFIG", "[fe80::1]:2222", ""), address("TF_CONFIG", "node1", "")
        (('fe80::1', 2222), ('node1', None))
    """
    text = text.strip()
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", text, re.DOTALL)
    if bracketed:
        host, port = bracketed[1] if ":" in bracketed[1] else bracketed[0], bracketed[2]
    elif text.count(":") > 1:
        host, port = text, None
    else:
        host, colon, after = text.partition(":")
        port = after if colon else None
    if not host:
        raise wrong(f"{field} has a host name before its port.", f"{field}={quote(text)}", paste)
    if not is_host(host):
        raise wrong(
            f"The host of {field} is a name of letters, digits, dots and dashes, or an IP address.",
            f"{field}={quote(text)}",
            paste,
        )
    if port is None:
        return host, None
    if not re.fullmatch(r"[0-9]{1,12}", port) or not 1 <= int(port) <= 65535:
        raise wrong(
            f"{field} ends in a port, 1 to 65535.",
            f"{field}={quote(text)}, whose port is {quote(port)}",
            paste,
        )
    return host, int(port)


def items(field: str, text: str, paste: str) -> list[str]:
    """What stands between the commas of a list.

    Args:
        field: Name of the variable.
        text: Its value.
        paste: The next line to type, if it is too long.

    Returns:
        The parts, as they are.

    Raises:
        ClusterError: More than 65,536 of them.

    Example:
        >>> items("TPU_WORKER_HOSTNAMES", "t0,t1", "")
        ['t0', 't1']
    """
    parts = text.split(",", MOST_WORKERS)
    if len(parts) > MOST_WORKERS:
        raise wrong(f"{field} lists {MOST_WORKERS} workers at most.", f"{field}={quote(text)}", paste)
    return parts


def port_of(environ: Mapping[str, str], default: int) -> int:
    """The coordinator's port: the user's `JAX_COORDINATOR_PORT`, or a default.

    Args:
        environ: The environment.
        default: The port where the user has chosen none.

    Returns:
        The port.

    Raises:
        ClusterError: The user's is no port.

    Example:
        >>> port_of({}, 8482), port_of({"JAX_COORDINATOR_PORT": "6002"}, 8482)
        (8482, 6002)
    """
    text = environ.get(COORDINATOR_PORT)
    if not text:
        return default
    return number(COORDINATOR_PORT, text, 1, 65535, f"export {COORDINATOR_PORT}={default}")


def wrong(rule: str, received: str, paste: str) -> ClusterError:
    """The error for values that are wrong, in three parts."""
    return ClusterError(message(rule, received, paste))


def incomplete(rule: str, received: str, paste: str) -> IncompleteError:
    """The error for values that are missing, in three parts."""
    return IncompleteError(message(rule, received, paste))
