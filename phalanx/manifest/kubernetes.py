"""Kubernetes: a JobSet of one indexed Job whose pods are the workers."""

from __future__ import annotations

from phalanx.cluster.fields import COORDINATOR_PORT
from phalanx.cluster.kubernetes import LABELS, PORT
from phalanx.errors import SettingError, message
from phalanx.manifest.job import Job
from phalanx.manifest.scalars import Tree, write
from phalanx.restart import PREEMPTED

_HEAD = """\
# {workers} workers of one script, as a JobSet: kubectl apply -f train.yaml
# The cluster needs the JobSet controller, https://jobset.sigs.k8s.io; the image needs phalanx and the script.
# What workers write stays only on a volume that you add; the chief is pod 0.
"""


def jobset(job: Job) -> str:
    """The manifest of a JobSet.

    A failure ends the Job, and the JobSet starts all pods again, `max_restarts` times; exit code 75
    (preempted) restarts without counting. The pods find each other through what
    `phalanx.cluster.kubernetes.parse` reads.

    Args:
        job: The run.

    Returns:
        YAML.

    Raises:
        SettingError: No image.

    References:
        https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
    """
    if job.image is None:
        raise SettingError(
            message(
                "A pod runs a container image, with phalanx and the script in it.",
                "no --image",
                f"phalanx manifest kubernetes --workers {job.workers} --image example/train:1 train.py",
            )
        )
    spec: dict[str, Tree] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": _failures(job),
        "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": _indexed_job(job)}}],
    }
    tree: Tree = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": spec,
    }
    return _HEAD.format(workers=job.workers) + write(tree)


def literal(text: str) -> str:
    """A text that the kubelet leaves as it is; in arguments it replaces `$(NAME)`, and `$$` by `$`.

    Example:
        >>> literal("$(id) costs $5")
        '$$(id) costs $$5'
    """
    return text.replace("$", "$$")


def _failures(job: Job) -> Tree:
    if not job.max_restarts:
        return {"maxRestarts": 0}
    preempted, late = ["PodFailurePolicy"], ["DeadlineExceeded"]
    rules: Tree = [
        {
            "name": "preempted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": preempted,
        },
        {"name": "late", "action": "FailJobSet", "onJobFailureReasons": late},
    ]
    return {"maxRestarts": job.max_restarts, "rules": rules}


def _indexed_job(job: Job) -> Tree:
    container: dict[str, Tree] = {
        "name": "worker",
        "image": job.image or "",
        "command": [literal(word) for word in job.command],
        "env": _variables(job),
        "ports": [{"containerPort": job.port or PORT}],
    }
    if job.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": job.gpus}}
    spec: dict[str, Tree] = {
        "completionMode": "Indexed",
        "completions": job.workers,
        "parallelism": job.workers,
        "backoffLimit": 0,
    }
    if job.seconds is not None:
        spec["activeDeadlineSeconds"] = job.seconds
    if job.max_restarts:
        exits: Tree = {"containerName": "worker", "operator": "In", "values": [PREEMPTED]}
        spec["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": exits}]}
    spec["template"] = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return spec


def _variables(job: Job) -> list[Tree]:
    fixed = {"NNODES": str(job.workers), "PYTHONUNBUFFERED": "1"}
    if job.port is not None:
        fixed[COORDINATOR_PORT] = str(job.port)
    labelled = {name: path for name, path in LABELS.items() if name != "JOB_NAME"}
    variables: list[Tree] = [{"name": name, "value": value} for name, value in fixed.items()]
    for name, path in labelled.items():
        field: Tree = {"fieldPath": f"metadata.labels['{path}']"}
        variables.append({"name": name, "valueFrom": {"fieldRef": field}})
    return variables
