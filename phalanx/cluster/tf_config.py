"""TF_CONFIG: the cluster as one JSON object, the same on every machine but for its `task`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phalanx.cluster.fields import address, number, wrong
from phalanx.cluster.spec import ClusterSpec, join
from phalanx.errors import ClusterError
from phalanx.text import quote

SOURCE = "TF_CONFIG"
_JOBS = ("chief", "worker", "evaluator")
_CLUSTER = '"cluster": {"worker": ["host1:2222", "host2:2222"]}'
_TASK = '"task": {"type": "worker", "index": 0}'
_EXAMPLE = f"export TF_CONFIG='{{{_CLUSTER}, {_TASK}}}'"
_REFUSED = {
    "master": (
        "The first worker's type is chief; master is the older name for it.",
        '"chief" instead of "master"',
    ),
    "ps": (
        "Phalanx trains synchronously: every worker holds the model, and nobody serves parameters.",
        "TF_CONFIG without ps; its machines may be workers",
    ),
}


def parse(environ: Mapping[str, str]) -> ClusterSpec | None:
    """Read `TF_CONFIG`.

    The chief, if there is one, is worker 0, and worker i then has index i + 1; without a chief, worker 0 is
    it. An evaluator is not counted. A process that is the evaluator is a cluster of one, as in tf.distribute.

    Args:
        environ: The environment.

    Returns:
        The cluster, or None where `TF_CONFIG` is not set.

    Raises:
        ClusterError: `TF_CONFIG` is set and describes none; the text names the field and the fix.

    Example:
        >>> spec = parse({"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]},'
        ...                            ' "task": {"type": "worker", "index": 1}}'})
        >>> spec.index, spec.addresses
        (2, ('a:1', 'b:1', 'c:1'))

    References:
        https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
    """
    text = environ.get(SOURCE)
    if not text:
        return None
    config = _object(text)
    jobs = {job: _addresses(job, tasks) for job, tasks in _jobs(config).items()}
    _check_different(jobs)
    if not jobs.get("chief") and not jobs.get("worker"):
        raise _wrong("cluster has a worker or a chief.", f"cluster={quote(jobs)}", _EXAMPLE)
    for job in ("chief", "evaluator"):
        if len(jobs.get(job, ())) > 1:
            raise _wrong(
                f"cluster.{job} has one address at most.",
                f"cluster.{job} has {len(jobs[job])}",
                f'"{job}": ["host0:2222"]   # the others are workers',
            )
    job, index = _task(config, jobs)
    if job == "evaluator":
        own = jobs["evaluator"][0] if jobs.get("evaluator") else ("localhost", None)
        note = "this process is the evaluator: it trains alone, beside the workers"
        return ClusterSpec(workers=(own,), source=SOURCE, notes=(note,))
    chiefs = jobs.get("chief", ())
    notes = ("the evaluator is not counted",) if jobs.get("evaluator") else ()
    return ClusterSpec(
        workers=(*chiefs, *jobs.get("worker", ())),
        index=index if job == "chief" else len(chiefs) + index,
        source=SOURCE,
        notes=notes,
    )


def _object(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text, object_pairs_hook=_without_doubles)
    except ClusterError:
        raise
    except RecursionError:
        raise _wrong("TF_CONFIG is a JSON object.", f"{quote(text)}, nested without end", _EXAMPLE) from None
    except ValueError as error:
        where = f", at character {error.pos}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        hint = "   # single quotes around, double quotes inside" if '"' not in text else ""
        raise _wrong("TF_CONFIG is JSON.", f"{quote(text)}{where}", _EXAMPLE + hint) from None
    if not isinstance(config, dict):
        raise _wrong("TF_CONFIG is a JSON object.", f"{quote(config)}, a {type(config).__name__}", _EXAMPLE)
    return config


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON keeps the last of two equal keys and forgets the first without a word."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _wrong("Each field of TF_CONFIG stands once.", f"{quote(name)} stands twice", _EXAMPLE)
        found[name] = value
    return found


def _jobs(config: dict[str, Any]) -> dict[str, Any]:
    if "cluster" not in config:
        fields = ", ".join(quote(name) for name in list(config)[:5]) or "no field"
        raise _wrong("TF_CONFIG has the field cluster.", fields, f"{_EXAMPLE}   # or: unset TF_CONFIG")
    cluster = config["cluster"]
    if not isinstance(cluster, dict) or not cluster:
        raise _wrong("cluster is an object of jobs.", f"cluster={quote(cluster)}", _CLUSTER)
    for job in cluster:
        _check_type("cluster", job)
    return cluster


def _check_type(field: str, job: object) -> None:
    if isinstance(job, str) and job in _REFUSED:
        rule, paste = _REFUSED[job]
        raise _wrong(rule, f"{field} names {job}", paste)
    if job not in _JOBS:
        raise _wrong(
            f"Types of tasks are {', '.join(_JOBS)}.", f"{field} names {quote(job)}", '"worker" instead of it'
        )


def _addresses(job: str, tasks: object) -> tuple[tuple[str, int | None], ...]:
    if not isinstance(tasks, list) or not tasks:
        raise _wrong(
            f"cluster.{job} is a list of addresses.",
            f"cluster.{job}={quote(tasks)}",
            f'"{job}": ["host1:2222"]',
        )
    found = []
    for at, task in enumerate(tasks):
        field = f"cluster.{job}[{at}]"
        if not isinstance(task, str):
            raise _wrong(f"{field} is text.", f"{field}={quote(task)}", f'"{job}": ["host1:2222"]')
        host, port = address(f"TF_CONFIG: {field}", task, f'"{job}": ["host1:2222"]')
        if port is None:
            raise _wrong(
                f"{field} ends in a port.", f"{field}={quote(task)}", f'"{job}": [{quote(join(host, 2222))}]'
            )
        found.append((host, port))
    return tuple(found)


def _check_different(jobs: Mapping[str, tuple[tuple[str, int | None], ...]]) -> None:
    seen: dict[str, str] = {}
    for job, addresses in jobs.items():
        for at, (host, port) in enumerate(addresses):
            field = f"cluster.{job}[{at}]"
            first = seen.setdefault(join(host.lower(), port), field)
            if first != field:
                raise _wrong(
                    "Each task has an address of its own.",
                    f"{first} and {field} are both {quote(join(host, port))}",
                    f"{quote(join(host, 2222))} and {quote(join(host, 2223))}   # on one machine, two ports",
                )


def _task(config: dict[str, Any], jobs: Mapping[str, tuple[object, ...]]) -> tuple[str, int]:
    if "task" not in config:
        raise _wrong(
            "TF_CONFIG has the field task: which of the cluster this process is.", "task is missing", _TASK
        )
    task = config["task"]
    if not isinstance(task, dict):
        raise _wrong("task is an object of type and index.", f"task={quote(task)}", _TASK)
    if "type" not in task:
        raise _wrong("task has the field type.", f"task={quote(task)}", _TASK)
    job = task["type"]
    _check_type("task.type", job)
    if job not in jobs and job != "evaluator":
        raise _wrong(
            "task.type is a job of the cluster.",
            f"task.type={job}, and cluster has {', '.join(jobs)}",
            f'"task": {{"type": "{next(iter(jobs))}", "index": 0}}',
        )
    if "index" not in task:
        raise _wrong(
            "task has the field index.", f"task={quote(task)}", f'"task": {{"type": "{job}", "index": 0}}'
        )
    last = max(0, len(jobs.get(job, ())) - 1)
    paste = f'"task": {{"type": "{job}", "index": {last}}}   # 0 to {last}, another on each machine'
    index = task["index"]
    if isinstance(index, bool) or not isinstance(index, (int, str)):
        raise _wrong("task.index is a whole number.", f"task.index={quote(index)}", paste)
    return job, number("TF_CONFIG: task.index", str(index), 0, last, paste)


def _wrong(rule: str, received: str, paste: str) -> ClusterError:
    return wrong(rule, f"TF_CONFIG: {received}", paste)
