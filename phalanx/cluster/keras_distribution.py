"""KERAS_DISTRIBUTION_*: what keras.distribution.initialize reads."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.fields import MOST_WORKERS, address, items, number, present, wrong
from phalanx.cluster.spec import ClusterSpec, join
from phalanx.text import quote

SOURCE = "KERAS_DISTRIBUTION"
_ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
_COUNT = "KERAS_DISTRIBUTION_NUM_PROCESSES"
_INDEX = "KERAS_DISTRIBUTION_PROCESS_ID"
_EXAMPLES = {
    _ADDRESSES: f"export {_ADDRESSES}=host1:2222,host2:2222",
    _COUNT: f"export {_COUNT}=2",
    _INDEX: f"export {_INDEX}=0   # another on each machine",
}


def parse(environ: Mapping[str, str]) -> ClusterSpec | None:
    """Read the three variables of `keras.distribution.initialize`.

    The addresses are all workers' or, as Keras allows on JAX, the coordinator's alone. The number may be
    left out where all addresses are there.

    Args:
        environ: The environment.

    Returns:
        The cluster, or None where none of the three is set.

    Raises:
        ClusterError: One is missing, or they contradict each other.

    Example:
        >>> spec = parse({"KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1234,10.0.0.2:2345",
        ...               "KERAS_DISTRIBUTION_NUM_PROCESSES": "2", "KERAS_DISTRIBUTION_PROCESS_ID": "1"})
        >>> spec.index, spec.coordinator
        (1, '10.0.0.1:1234')

    References:
        https://keras.io/api/distribution/distribution_utils/
    """
    found = present(environ, _EXAMPLES)
    if not found:
        return None
    parts = items(_ADDRESSES, environ.get(_ADDRESSES, ""), _EXAMPLES[_ADDRESSES])
    needed = [name for name in _EXAMPLES if name != _COUNT or len(parts) < 2]
    missing = [name for name in needed if name not in found]
    if missing:
        raise wrong(
            "keras.distribution's variables stand together.",
            f"{', '.join(found)} without {', '.join(missing)}",
            _EXAMPLES[missing[0]],
        )
    workers = []
    for at, part in enumerate(parts):
        field = f"{_ADDRESSES}[{at}]"
        host, port = address(field, part, _EXAMPLES[_ADDRESSES])
        if port is None:
            raise wrong(
                f"{field} ends in a port.",
                f"{field}={quote(part)}",
                f"export {_ADDRESSES}={quote(join(host, 2222))}",
            )
        workers.append((host, port))
    count = len(workers)
    if _COUNT in found:
        count = number(_COUNT, environ[_COUNT], 1, MOST_WORKERS, f"export {_COUNT}={len(workers)}")
    if len(workers) not in (1, count):
        raise wrong(
            "There are as many addresses as processes, or the coordinator's alone.",
            f"{len(workers)} in {_ADDRESSES}, and {_COUNT}={count}",
            f"export {_COUNT}={len(workers)}",
        )
    index = number(_INDEX, environ[_INDEX], 0, count - 1, f"export {_INDEX}={count - 1}   # 0 to {count - 1}")
    notes = () if _COUNT in found else (f"{_COUNT} is not set: {count}, the number of addresses",)
    return ClusterSpec(
        workers=tuple(workers),
        count=None if len(workers) == count else count,
        index=index,
        source=SOURCE,
        notes=notes,
    )
