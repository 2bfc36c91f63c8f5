"""Hostile values in every variable that is read: an error of readable length or a harmless value, and nothing runs."""

import json
import os
import re
import sys

import pytest

from phalanx import ClusterError
from phalanx.cluster import explain

TF = {
    "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
}
FULL = {
    "tf_config": TF,
    "keras": {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:1,b:1",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
        "KERAS_DISTRIBUTION_PROCESS_ID": "0",
    },
    "torchrun": {
        "MASTER_ADDR": "t",
        "MASTER_PORT": "1",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    },
    "slurm": {
        "SLURM_JOB_ID": "1",
        "JAX_COORDINATOR_PORT": "7000",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "s[1-2]",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_DISTRIBUTION": "block",
    },
    "allocation": {
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_NTASKS": "1",
        "SLURM_JOB_NUM_NODES": "1",
    },
    "mpi": {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.1:1",
    },
    "prte": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-n-1@1"},
    "job": {
        "JOB_COMPLETION_INDEX": "0",
        "HOSTNAME": "j-0",
        "NNODES": "2",
        "POD_SUBDOMAIN": "svc",
        "JAX_COORDINATOR_PORT": "1",
    },
    "jobset": {
        "JOB_COMPLETION_INDEX": "0",
        "NNODES": "2",
        "JOBSET_NAME": "s",
        "REPLICATED_JOB_NAME": "r",
        "JOB_INDEX": "0",
        "REPLICATED_JOB_REPLICAS": "2",
        "HOSTNAME": "s-r-0-0",
    },
    "tpu": {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"},
    "slices": {
        "TPU_WORKER_HOSTNAMES": "a,b",
        "TPU_WORKER_ID": "0",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "0",
        "MEGASCALE_COORDINATOR_ADDRESS": "a",
    },
    "bounds": {"TPU_HOST_BOUNDS": "1,1,1"},
}
PLACES = [(name, variable) for name, environ in FULL.items() for variable in environ]
HOSTILE = {
    "quotes": "a'b\"c`d",
    "newlines": "a\nb\r\nc",
    "a substitution": "$(touch owned)",
    "code": "__import__('os').mkdir('owned')",
    "an escape": "\x1b[2J\x07",
    "no unicode": "\udcff\udc80",
    "half a character": "\ud800",
    "another script's digits": "٣",
    "a megabyte": "x" * 2**20,
    "a megabyte of digits": "9" * 2**20,
    "a megabyte of commas": "," * 2**20,
    "a megabyte of brackets": "[" * 2**20,
    "a megabyte of list": "a1," * (2**20 // 3) + "b",
    "a range": "[0-99999999]",
    "a fraction": "1e3",
    "a minus": "-1",
}


def harmless(text):
    """One line each, printable, of readable length."""
    assert len(text) < 1500, len(text)
    assert text.isprintable(), ascii(text)
    text.encode()


@pytest.mark.parametrize(("name", "variable"), PLACES)
def test_a_hostile_value_is_an_error_or_harmless(name, variable, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in HOSTILE.values():
        check(explain(FULL[name] | {variable: value}))
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()


def check(resolution):
    for line in str(resolution).splitlines():
        harmless(line)
    if resolution.error is not None:
        assert isinstance(resolution.error, ClusterError) and isinstance(resolution.error, ValueError)
        rule, received, paste = str(resolution.error).splitlines()
        for part in (rule, received, paste):
            harmless(part)
        assert "touch owned" not in paste and "__import__" not in paste
    else:
        for host, port in resolution.spec.workers:
            assert re.fullmatch(r"[A-Za-z0-9_.:%-]{1,253}", host)
            assert port is None or 1 <= port <= 65535
        for line in str(resolution.spec).splitlines():
            harmless(line)


@pytest.mark.parametrize("name", FULL)
def test_without_the_hostile_value_each_of_these_is_a_cluster(name):
    assert explain(FULL[name]).spec is not None


@pytest.mark.parametrize("place", ["host", "port", "type", "index", "job", "field", "task"])
def test_a_hostile_value_inside_of_tf_config_is_an_error_of_readable_length(place):
    for value, text in HOSTILE.items():
        cluster = {"worker": [text + ":1" if place == "host" else "a:" + text if place == "port" else "a:1"]}
        task = {"type": text if place == "type" else "worker", "index": text if place == "index" else 0}
        if place == "job":
            cluster[text] = ["b:1"]
        config = {text if place == "field" else "cluster": cluster, "task": text if place == "task" else task}
        resolution = explain({"TF_CONFIG": json.dumps(config)})
        if (place, value) == ("host", "a fraction"):
            assert resolution.spec.workers == (("1e3", 1),)
            continue
        assert resolution.error is not None
        for part in str(resolution.error).splitlines():
            harmless(part)


def test_no_module_that_could_run_a_value_is_loaded_by_reading_one():
    assert not {"subprocess", "socket"} & set(vars(sys.modules["phalanx.cluster.resolution"]))
