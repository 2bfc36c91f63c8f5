"""Which environment counts, what conflicts with it, and never a quiet run of one worker."""

import dataclasses
import json
import os

import pytest

import phalanx
from phalanx import ClusterError, PhalanxWarning
from phalanx.cluster import ClusterSpec, explain, resolve
from phalanx.cluster.resolution import PARSERS

TF = {
    "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})
}
KERAS = {
    "KERAS_DISTRIBUTION_JOB_ADDRESSES": "k:1",
    "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
    "KERAS_DISTRIBUTION_PROCESS_ID": "2",
}
TORCH = {"MASTER_ADDR": "t", "MASTER_PORT": "1", "RANK": "3", "WORLD_SIZE": "4"}
SLURM = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "s[1-5]", "SLURM_NTASKS": "5", "SLURM_PROCID": "4"}
MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "6"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "6", "HOSTNAME": "j-6", "NNODES": "7", "POD_SUBDOMAIN": "svc"}
TPU = {"TPU_WORKER_HOSTNAMES": "h0,h1,h2,h3,h4,h5,h6,h7", "TPU_WORKER_ID": "7"}
ALL = [TF, KERAS, TORCH, SLURM, MPI, KUBERNETES, TPU]


def verdicts(environ):
    return {each.source: each.verdict for each in explain(environ).findings if each.verdict != "-"}


def test_the_front_door_leads_here():
    assert phalanx.cluster.resolve is resolve
    assert phalanx.cluster.ClusterSpec is ClusterSpec


def test_nothing_said_is_one_worker_that_names_its_source():
    spec = resolve({})
    assert (spec.num_workers, spec.index, spec.is_chief, spec.source) == (1, 0, True, "no environment")
    assert explain({}).winner == "one worker"


def test_the_processs_own_environment_is_the_default(monkeypatch):
    for name in dict(os.environ):
        if name.startswith(("SLURM", "OMPI", "PMI", "TPU_", "KERAS_DIST", "MASTER_", "JOB")) or name in (
            "RANK",
            "WORLD_SIZE",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TF_CONFIG", TF["TF_CONFIG"])
    assert (resolve().num_workers, resolve().index) == (2, 1)
    monkeypatch.undo()


@pytest.mark.parametrize("first", range(7), ids=[source for source, _ in PARSERS])
def test_the_first_that_speaks_counts(first):
    environ = {name: value for each in ALL[first:] for name, value in each.items()}
    if first == 3:  # MPI inside of Slurm has its own test
        environ = {name: value for name, value in environ.items() if not name.startswith("OMPI_")}
    resolution = explain(environ)
    assert resolution.winner == PARSERS[first][0]
    assert resolution.spec.num_workers == first + 2
    assert resolution.spec.index == first + 1


def test_a_conflict_is_told_on_each_number():
    resolution = explain(TF | TORCH)
    assert verdicts(TF | TORCH) == {"TF_CONFIG": "counts", "torchrun": "conflicts"}
    assert resolution.spec.notes == ("torchrun conflicts: 4 workers, not 2; index 3, not 1",)
    assert "conflicts: 4 workers, not 2; index 3, not 1" in str(resolution)


def test_one_that_says_the_same_agrees_without_a_note():
    same = {**TORCH, "RANK": "1", "WORLD_SIZE": "2"}
    assert verdicts(TF | same)["torchrun"] == "agrees"
    assert resolve(TF | same).notes == ()


def test_addresses_exported_in_a_batch_script_are_a_note_where_slurm_says_all():
    exported = {"MASTER_ADDR": "s1", "MASTER_PORT": "29500"}
    spec = resolve(SLURM | exported)
    assert (spec.source, spec.num_workers) == ("Slurm", 5)
    assert spec.notes == ("torchrun incomplete: MASTER_ADDR, MASTER_PORT without RANK, WORLD_SIZE",)


def test_mpirun_inside_of_a_slurm_job_is_counted_by_mpi():
    spec = resolve(SLURM | MPI)
    assert (spec.source, spec.num_workers, spec.index) == ("MPI", 6, 5)
    assert any("Slurm incomplete" in note for note in spec.notes)


def test_gke_pods_with_tpus_are_counted_by_their_tpu_variables_where_the_manifest_says_no_number():
    spec = resolve({**TPU, "JOB_COMPLETION_INDEX": "7", "HOSTNAME": "j-7"})
    assert (spec.source, spec.num_workers) == ("TPU", 8)


@pytest.mark.parametrize(
    ("environ", "received"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE without MASTER_ADDR"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, "without RANK, WORLD_SIZE"),
        ({"KERAS_DISTRIBUTION_NUM_PROCESSES": "2"}, "without KERAS_DISTRIBUTION_JOB_ADDRESSES"),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}, "started without srun"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK without a size"),
        ({"JOB_COMPLETION_INDEX": "0", "HOSTNAME": "j-0"}, "without NNODES"),
        ({"TPU_WORKER_ID": "1"}, "without TPU_WORKER_HOSTNAMES"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "JAX_COORDINATOR_ADDRESS='a:1'"),
        ({"TF_CONFIG": "{}"}, "no field"),
    ],
)
def test_a_half_set_environment_is_never_quietly_one_worker(environ, received):
    with pytest.raises(ClusterError) as error:
        resolve(environ)
    assert received in str(error.value)
    assert explain(environ).spec is None and explain(environ).error is not None


def test_an_environment_that_is_wrong_is_not_passed_over_for_a_later_one():
    with pytest.raises(ClusterError, match="RANK='9'"):
        resolve({**TORCH, "RANK": "9"} | SLURM)


def test_an_environment_that_is_wrong_behind_the_one_that_counts_is_a_note():
    spec = resolve(TF | {**TORCH, "RANK": "9"})
    assert (spec.source, spec.notes) == ("TF_CONFIG", ("torchrun wrong: RANK='9'",))


def test_half_set_keras_variables_are_an_error_even_where_slurm_says_all():
    with pytest.raises(ClusterError, match="KERAS_DISTRIBUTION"):
        resolve(SLURM | {"KERAS_DISTRIBUTION_PROCESS_ID": "0"})


ONE = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (TORCH, r"torchrun \(conflicts\): worker 3 of 4"),
        ({"WORLD_SIZE": "4"}, r"torchrun \(incomplete\): WORLD_SIZE without"),
    ],
)
def test_one_worker_among_signs_of_several_warns(other, words):
    with pytest.warns(PhalanxWarning, match=words):
        assert resolve(ONE | other).num_workers == 1


def test_a_resolution_is_a_value_and_prints_every_environment():
    resolution = explain(TF)
    lines = str(resolution).splitlines()
    assert [line.split()[0] for line in lines] == ["environment", *(source for source, _ in PARSERS)]
    assert lines[1].split("  ")[-1].strip() == "counts"
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolution.spec = None


def test_the_environment_is_only_read():
    environ = TF | SLURM
    before = dict(environ)
    explain(environ)
    assert environ == before
