"""Kubernetes: the pods of an indexed Job or of a JobSet, by the names that they give each other."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.fields import MOST_WORKERS, incomplete, number, port_of, present, wrong
from phalanx.cluster.spec import ClusterSpec
from phalanx.text import quote

SOURCE = "Kubernetes"
PORT = 55527
_INDEX = "JOB_COMPLETION_INDEX"
_SET = ("JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX", "REPLICATED_JOB_REPLICAS")
LABELS = {
    "JOBSET_NAME": "jobset.sigs.k8s.io/jobset-name",
    "REPLICATED_JOB_NAME": "jobset.sigs.k8s.io/replicatedjob-name",
    "JOB_INDEX": "jobset.sigs.k8s.io/job-index",
    "REPLICATED_JOB_REPLICAS": "jobset.sigs.k8s.io/replicatedjob-replicas",
    "JOB_NAME": "batch.kubernetes.io/job-name",
}
_VALUES = {
    "NNODES": '"2"   # all pods',
    "POD_SUBDOMAIN": "workers   # the headless service, as in spec.subdomain",
}


def parse(environ: Mapping[str, str]) -> ClusterSpec | None:
    """Read an indexed Job's or a JobSet's variables.

    Kubernetes itself sets `JOB_COMPLETION_INDEX` and `HOSTNAME`, and tells a pod neither how many there are
    nor their service. The manifest says it: `NNODES`, the number of pods; for a Job, `POD_SUBDOMAIN`, the
    headless service; for a JobSet, `JOBSET_NAME`, `REPLICATED_JOB_NAME`, `JOB_INDEX` and
    `REPLICATED_JOB_REPLICAS` from its labels. Pods of a Job are `job-index.service`, those of a JobSet
    `set-name-job-index.set`. The port is `JAX_COORDINATOR_PORT` or 55527.

    Args:
        environ: The environment.

    Returns:
        The cluster, or None where this is no pod of an indexed Job.

    Raises:
        ClusterError: The manifest leaves out one of them, or they contradict each other.

    Example:
        >>> spec = parse({"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "NNODES": "2",
        ...               "POD_SUBDOMAIN": "svc"})
        >>> spec.index, spec.addresses
        (1, ('train-0.svc:55527', 'train-1.svc:55527'))

    References:
        https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/;
        https://jobset.sigs.k8s.io/docs/concepts/
    """
    in_set = bool(environ.get("JOBSET_NAME"))
    if not environ.get(_INDEX) and not in_set:
        return None
    _need(environ, _INDEX, "NNODES")
    count = number("NNODES", environ["NNODES"], 1, MOST_WORKERS, _yaml("NNODES"))
    pod = number(_INDEX, environ[_INDEX], 0, count - 1, f"{_yaml('NNODES')}: one more than the last index")
    if in_set:
        return _jobset(environ, count, pod)
    if count == 1:
        return ClusterSpec(workers=(("localhost", None),), source=SOURCE)
    job = _job_name(environ, pod)
    _need(environ, "POD_SUBDOMAIN")
    service, port = environ["POD_SUBDOMAIN"], port_of(environ, PORT)
    workers = tuple((f"{job}-{each}.{service}", port) for each in range(count))
    return ClusterSpec(workers=workers, index=pod, source=SOURCE)


def _jobset(environ: Mapping[str, str], count: int, pod: int) -> ClusterSpec:
    _need(environ, "REPLICATED_JOB_NAME")
    if present(environ, ("JOB_INDEX", "REPLICATED_JOB_REPLICAS")):
        _need(environ, "JOB_INDEX", "REPLICATED_JOB_REPLICAS")
        jobs = number(
            "REPLICATED_JOB_REPLICAS", environ["REPLICATED_JOB_REPLICAS"], 1, count, _yaml("NNODES")
        )
        job = number("JOB_INDEX", environ["JOB_INDEX"], 0, jobs - 1, _yaml("JOB_INDEX"))
    else:
        jobs, job = 1, 0
    pods, over = divmod(count, jobs)
    if over or pod >= pods:
        raise wrong(
            "NNODES is all pods: the Jobs of a JobSet times the pods of each.",
            f"NNODES={count}, REPLICATED_JOB_REPLICAS={jobs}, {_INDEX}={pod}",
            _yaml("NNODES"),
        )
    name, own = environ["JOBSET_NAME"], environ["REPLICATED_JOB_NAME"]
    service, port = environ.get("POD_SUBDOMAIN") or name, port_of(environ, PORT)
    hosts = [f"{name}-{own}-{each}-{at}" for each in range(jobs) for at in range(pods)]
    index = job * pods + pod
    host = environ.get("HOSTNAME", "").partition(".")[0]
    notes = []
    if host and host != hosts[index]:
        notes.append(f"this pod's name is {quote(host)}, and by its numbers {quote(hosts[index])}")
    return ClusterSpec(
        workers=tuple((f"{each}.{service}", port) for each in hosts),
        index=index,
        source=f"{SOURCE} JobSet",
        notes=tuple(notes),
    )


def _job_name(environ: Mapping[str, str], pod: int) -> str:
    """A pod's name is its Job's and its index, unless it lives in the network of its node."""
    host = environ.get("HOSTNAME", "").partition(".")[0]
    if host.endswith(f"-{pod}"):
        return host.removesuffix(f"-{pod}")
    if environ.get("JOB_NAME"):
        return environ["JOB_NAME"]
    raise incomplete(
        f"A pod of an indexed Job is called like the Job, a dash and {_INDEX}.",
        f"HOSTNAME={quote(host)}, {_INDEX}={pod}",
        _yaml("JOB_NAME"),
    )


def _need(environ: Mapping[str, str], *names: str) -> None:
    missing = [name for name in names if not environ.get(name)]
    if not missing:
        return
    found = present(environ, (_INDEX, *_SET, "NNODES", "HOSTNAME"))
    if missing[0] == _INDEX:
        raise incomplete(
            "Workers are pods of an indexed Job.", f"no {_INDEX}", "completionMode: Indexed   # in the Job"
        )
    raise incomplete(
        "A pod does not know how many pods there are, nor their service, unless its manifest says so.",
        f"{', '.join(found)} without {', '.join(missing)}",
        _yaml(missing[0]),
    )


def _yaml(name: str) -> str:
    """The line for the container's `env`."""
    if name in LABELS:
        path = f"metadata.labels['{LABELS[name]}']"
        return f'- {{name: {name}, valueFrom: {{fieldRef: {{fieldPath: "{path}"}}}}}}'
    return f"- {{name: {name}, value: {_VALUES[name].replace('   #', '}   #', 1)}"
