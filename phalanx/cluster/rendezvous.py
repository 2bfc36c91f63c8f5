"""The first meeting of the workers: who is there, who is missing, and whether all run the same.

It comes before JAX, whose own start waits for a missing worker without saying who that is. The chief
listens at the coordinator's address; every other worker says who it is and waits for the chief's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.errors import ClusterError, message
from phalanx.host import wire

_HELLO_SECONDS = 10.0
_NAMED = 20  # missing workers that are named: all of a large cluster would not fit into a message


def meet(
    coordinator: tuple[str, int],
    workers: Mapping[int, str],
    index: int,
    card: Mapping[str, str],
    timeout: float,
    chief: int = 0,
) -> dict[int, wire.Wire]:
    """Wait until every worker is there and runs the same versions and script.

    Args:
        coordinator: Host and port where the chief listens.
        workers: What to call each worker in a text, by index: its address.
        index: Which worker this process is.
        card: What must be equal on all workers, by name: versions, script.
        timeout: Seconds to wait for all.
        chief: Which worker listens.

    Returns:
        Open lines: to every other worker on the chief, to the chief on the others.

    Raises:
        ClusterError: A worker is missing, there twice or different, or the port is taken.
    """
    if len(workers) == 1:
        return {}
    deadline = wire.now() + timeout
    if index == chief:
        return _host(coordinator, workers, index, card, timeout, deadline)
    return {chief: _join(coordinator, workers, index, card, timeout, deadline, chief)}


def _host(
    coordinator: tuple[str, int],
    workers: Mapping[int, str],
    index: int,
    card: Mapping[str, str],
    timeout: float,
    deadline: float,
) -> dict[int, wire.Wire]:
    there: dict[int, tuple[wire.Wire, Mapping[str, str]]] = {}
    wrong: ClusterError | None = None
    wire.wait_for_name(coordinator[0], deadline)
    try:
        with wire.listen(*coordinator) as listener:
            for guest, hello in wire.guests(listener, deadline, _HELLO_SECONDS):
                if hello is None or hello.get("phalanx") != 1:
                    guest.close()  # not one of us: a port scan, a browser
                    continue
                wrong = judge(hello, index, workers, card, {i: c for i, (_, c) in there.items()})
                if wrong is not None:
                    guest.send({"error": str(wrong)})
                    guest.close()
                else:
                    there[hello["worker"]] = (guest, hello["card"])
                if wrong is not None or len(there) == len(workers) - 1:
                    break
            missing = [i for i in workers if i != index and i not in there]
            if wrong is None and missing:
                wrong = never_connected(missing, workers, timeout)
            for guest, _ in there.values():
                guest.send({"error": str(wrong)} if wrong else {"welcome": len(workers)})
    except OSError as error:
        raise ClusterError(
            message(
                "The chief listens at the coordinator's address, which is free and its own.",
                f"{coordinator[0]}:{coordinator[1]}: {error.strerror or error}",
                f"ss -ltnp 'sport = :{coordinator[1]}'   # who has it; or choose another port",
            )
        ) from error
    if wrong is not None:
        for guest, _ in there.values():
            guest.close()
        raise wrong
    return {worker: guest for worker, (guest, _) in there.items()}


def _join(
    coordinator: tuple[str, int],
    workers: Mapping[int, str],
    index: int,
    card: Mapping[str, str],
    timeout: float,
    deadline: float,
    chief: int,
) -> wire.Wire:
    found = wire.connect(*coordinator, deadline)
    if isinstance(found, str):
        raise ClusterError(
            message(
                "Every worker reaches the chief within the connect timeout.",
                f"worker {chief} ({workers[chief]}) never answered worker {index} in {timeout:g} s: {found}",
                f"nc -vz {coordinator[0]} {coordinator[1]}   # from the machine of worker {index}",
            )
        )
    found.send({"phalanx": 1, "worker": index, "workers": len(workers), "card": dict(card)})
    answer = found.receive(deadline + _HELLO_SECONDS)
    if answer is None or "error" in answer:
        found.close()
    if answer is None:
        raise ClusterError(
            message(
                "The chief tells every worker when all are there.",
                f"worker {chief} ({workers[chief]}) went away, or gave no answer in {timeout:g} s",
                f"look at the output of worker {chief}",
            )
        )
    if "error" in answer:
        raise ClusterError(str(answer["error"]))
    return found


def judge(
    hello: Mapping[str, Any],
    index: int,
    workers: Mapping[int, str],
    card: Mapping[str, str],
    there: Mapping[int, Mapping[str, str]],
) -> ClusterError | None:
    """Whether a worker that says hello fits into the cluster.

    Args:
        hello: What it says: `worker`, `workers` and its `card`.
        index: The chief's index.
        workers: What to call each worker, by index.
        card: The chief's card.
        there: Cards of the workers that are there already, by index.

    Returns:
        What is wrong with it, or None.
    """
    who, count, theirs = hello.get("worker"), hello.get("workers"), hello.get("card")
    if (
        count != len(workers)
        or not isinstance(who, int)
        or who not in workers
        or not isinstance(theirs, dict)
    ):
        return ClusterError(
            message(
                "All workers are told of the same cluster.",
                f"a worker says it is {str(who)[:20]} of {str(count)[:20]}, the chief knows {len(workers)}",
                "phalanx cluster explain   # on both machines",
            )
        )
    if who == index or who in there:
        return ClusterError(
            message(
                "Each worker has an index of its own.",
                f"two processes say that they are worker {who} ({workers[who]})",
                f'"task": {{"type": "worker", "index": {_free(index, workers, there)}}}   # in one TF_CONFIG',
            )
        )
    different = [name for name in sorted({*card, *theirs}) if card.get(name) != theirs.get(name)]
    if different:
        return ClusterError(
            message(
                "All workers run the same script on the same versions.",
                "; ".join(
                    f"{name}: worker {who} has {theirs.get(name)!s:.40}, the chief {card.get(name)!s:.40}"
                    for name in different
                ),
                "pip install -r constraints.txt   # the same on every machine, and the same script",
            )
        )
    return None


def never_connected(missing: list[int], workers: Mapping[int, str], timeout: float) -> ClusterError:
    """The error that names who never came."""
    first = workers[missing[0]]
    return ClusterError(
        message(
            "Every worker connects within the connect timeout.",
            "; ".join(f"worker {i} ({workers[i]}) never connected" for i in missing[:_NAMED])
            + (f"; {len(missing) - _NAMED} more did not" if len(missing) > _NAMED else "")
            + f" in {timeout:g} s",
            f"start the script on {first}, or: phalanx cluster explain   # there, to see what it believes",
        )
    )


def _free(index: int, workers: Mapping[int, str], there: Mapping[int, Any]) -> int:
    return next((i for i in workers if i != index and i not in there), index)
