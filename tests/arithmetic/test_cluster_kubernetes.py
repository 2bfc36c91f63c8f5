"""Kubernetes: pods of an indexed Job and of a JobSet, by their names."""

import pytest

from phalanx import ClusterError
from phalanx.cluster import kubernetes
from phalanx.cluster.fields import IncompleteError

JOB = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2", "NNODES": "3", "POD_SUBDOMAIN": "workers"}
SET = {
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "big-worker-1-1",
    "JOBSET_NAME": "big",
    "REPLICATED_JOB_NAME": "worker",
    "JOB_INDEX": "1",
    "REPLICATED_JOB_REPLICAS": "2",
    "NNODES": "4",
}


def without(environ, *names):
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize(
    "environ", [{}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "web-1", "NNODES": "2"}]
)
def test_a_pod_of_no_indexed_job_has_nothing_to_say(environ):
    assert kubernetes.parse(environ) is None


def test_pods_of_an_indexed_job_are_the_jobs_name_and_index_under_its_service():
    spec = kubernetes.parse(JOB)
    assert spec.addresses == tuple(f"train-{i}.workers:55527" for i in range(3))
    assert (spec.index, spec.source) == (2, "Kubernetes")


def test_the_jobs_name_may_have_dashes_and_numbers():
    spec = kubernetes.parse({**JOB, "HOSTNAME": "train-2-2.workers.ns.svc.cluster.local"})
    assert spec.workers[1][0] == "train-2-1.workers"


def test_a_pod_in_its_nodes_network_takes_the_jobs_name_from_its_label():
    assert (
        kubernetes.parse({**JOB, "HOSTNAME": "gke-node", "JOB_NAME": "train"}).workers[0][0]
        == "train-0.workers"
    )
    with pytest.raises(IncompleteError, match="HOSTNAME='gke-node', JOB_COMPLETION_INDEX=2") as error:
        kubernetes.parse({**JOB, "HOSTNAME": "gke-node"})
    assert "metadata.labels['batch.kubernetes.io/job-name']" in str(error.value)


def test_jaxs_own_variable_chooses_the_port():
    assert kubernetes.parse({**JOB, "JAX_COORDINATOR_PORT": "6002"}).coordinator == "train-0.workers:6002"


def test_pods_of_a_jobset_are_set_name_job_and_index_under_the_sets_service():
    spec = kubernetes.parse(SET)
    assert [host for host, _ in spec.workers] == [f"big-worker-{j}-{p}.big" for j in (0, 1) for p in (0, 1)]
    assert (spec.index, spec.num_workers, spec.source, spec.notes) == (3, 4, "Kubernetes JobSet", ())


def test_a_jobset_of_one_job_needs_no_number_of_jobs():
    spec = kubernetes.parse(
        {**without(SET, "JOB_INDEX", "REPLICATED_JOB_REPLICAS"), "HOSTNAME": "big-worker-0-1"}
    )
    assert [host for host, _ in spec.workers] == [f"big-worker-0-{p}.big" for p in range(4)]
    assert spec.index == 1


def test_a_jobset_may_have_a_subdomain_of_its_own():
    assert kubernetes.parse({**SET, "POD_SUBDOMAIN": "example"}).workers[0][0] == "big-worker-0-0.example"


def test_a_pod_whose_name_is_another_than_its_numbers_say_gets_a_note():
    assert "'elsewhere'" in kubernetes.parse({**SET, "HOSTNAME": "elsewhere"}).notes[0]


def test_one_pod_is_a_cluster_of_one_and_needs_no_service():
    assert kubernetes.parse({"JOB_COMPLETION_INDEX": "0", "NNODES": "1"}).num_workers == 1


@pytest.mark.parametrize(
    ("environ", "missing", "paste"),
    [
        (without(JOB, "NNODES"), "without NNODES", '- {name: NNODES, value: "2"}'),
        (without(JOB, "POD_SUBDOMAIN"), "without POD_SUBDOMAIN", "- {name: POD_SUBDOMAIN, value: workers}"),
        (
            without(SET, "REPLICATED_JOB_NAME"),
            "without REPLICATED_JOB_NAME",
            "jobset.sigs.k8s.io/replicatedjob-name",
        ),
        (without(SET, "JOB_INDEX"), "without JOB_INDEX", "jobset.sigs.k8s.io/job-index"),
        (
            without(SET, "REPLICATED_JOB_REPLICAS"),
            "without REPLICATED_JOB_REPLICAS",
            "replicatedjob-replicas",
        ),
        (without(SET, "JOB_COMPLETION_INDEX"), "no JOB_COMPLETION_INDEX", "completionMode: Indexed"),
    ],
)
def test_what_the_manifest_leaves_out_is_incomplete_with_the_line_to_add(environ, missing, paste):
    with pytest.raises(IncompleteError) as error:
        kubernetes.parse(environ)
    assert missing in str(error.value) and paste in str(error.value)


@pytest.mark.parametrize(
    ("environ", "received"),
    [
        ({**JOB, "JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX='3'"),
        ({**JOB, "NNODES": "three"}, "NNODES='three'"),
        ({**JOB, "JAX_COORDINATOR_PORT": "0"}, "JAX_COORDINATOR_PORT='0'"),
        ({**SET, "NNODES": "5"}, "NNODES=5, REPLICATED_JOB_REPLICAS=2"),
        ({**SET, "JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX=2"),
        ({**SET, "JOB_INDEX": "2"}, "JOB_INDEX='2'"),
        ({**JOB, "POD_SUBDOMAIN": "a b"}, "'train-0.a b'"),
    ],
)
def test_a_wrong_value_is_quoted_with_its_name(environ, received):
    with pytest.raises(ClusterError) as error:
        kubernetes.parse(environ)
    assert received in str(error.value) and not isinstance(error.value, IncompleteError)
