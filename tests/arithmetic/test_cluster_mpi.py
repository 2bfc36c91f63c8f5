"""MPI: rank and size from any of its launchers, and a place to meet."""

import pytest

from phalanx import ClusterError
from phalanx.cluster import mpi
from phalanx.cluster.fields import IncompleteError

OPEN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
URI = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1,10.108.0.1:34911"}


def test_without_mpi_there_is_nothing_to_say():
    assert mpi.parse({"OMPI_MCA_btl": "tcp"}) is None


@pytest.mark.parametrize(
    ("names", "where"),
    [
        (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}),
        (("PMI_RANK", "PMI_SIZE"), {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}),
    ],
)
def test_rank_and_size_and_a_given_place_to_meet(names, where):
    spec = mpi.parse({names[0]: "2", names[1]: "4", **where})
    assert (spec.index, spec.num_workers, spec.coordinator, spec.count) == (2, 4, "node1:29500", 4)


@pytest.mark.parametrize(
    ("where", "host"),
    [
        (URI, "10.96.0.1"),
        ({"OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b:1,2620:10d::2]:43370"}, "fe80::b9b:1"),
        ({"PMIX_NAMESPACE": "prterun-node-1.example-4711@1"}, "node-1.example"),
    ],
)
def test_the_launchers_machine_is_the_place_to_meet_and_a_note_says_what_that_assumes(where, host):
    spec = mpi.parse(OPEN | where)
    assert spec.workers[0][0] == host
    assert "rank 0 must be there" in spec.notes[0]


def test_rank_0_elsewhere_than_mpirun_is_an_error_on_rank_0():
    elsewhere = {"PMIX_NAMESPACE": "prterun-login-4711@1", "PMIX_HOSTNAME": "node1"}
    with pytest.raises(ClusterError, match="mpirun on 'login', by PMIX_NAMESPACE, and rank 0 on 'node1'"):
        mpi.parse({**OPEN, **elsewhere, "OMPI_COMM_WORLD_RANK": "0"})
    assert mpi.parse({**OPEN, **elsewhere, "PMIX_HOSTNAME": "login"}).workers[0][0] == "login"
    assert mpi.parse({**OPEN, **elsewhere, "MASTER_ADDR": "node1"}).workers[0][0] == "node1"


def test_what_mpich_and_open_mpi_5_set_on_one_machine():
    """The variables of mpiexec.hydra (MPICH 5) and prterun (Open MPI 5), as they were printed."""
    hydra = {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1", "PMI_FD": "9", "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert (mpi.parse(hydra).index, mpi.parse(hydra).workers[0][0]) == (1, "127.0.0.1")
    prte = {
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "PMIX_HOSTNAME": "n1",
        "PMIX_NAMESPACE": "prterun-n1-10145@1",
        "PMIX_RANK": "1",
        "PRTE_LAUNCHED": "1",
    }
    assert (mpi.parse(prte).num_workers, mpi.parse(prte).workers[0][0]) == (2, "127.0.0.1")
    assert mpi.parse({**prte, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}).workers[0][0] == "n1"


def test_the_port_follows_from_the_job_and_is_the_same_on_all_ranks():
    ports = {mpi.parse({**OPEN, **URI, "OMPI_COMM_WORLD_RANK": str(i)}).workers[0][1] for i in range(4)}
    assert ports == {61440 + 1531576320 // 4096 % 4096}
    space = [mpi.parse({**OPEN, "PMIX_NAMESPACE": f"prterun-n1-{i}@1"}).workers[0][1] for i in (1, 1, 2)]
    assert space[0] == space[1] != space[2] and all(61440 <= port <= 65535 for port in space)


def test_ranks_that_share_a_machine_meet_on_loopback():
    spec = mpi.parse({**OPEN, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", **URI})
    assert spec.workers[0][0] == "127.0.0.1"
    assert (
        mpi.parse({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}).coordinator == "127.0.0.1:61440"
    )


def test_ranks_on_several_machines_never_meet_on_loopback():
    spec = mpi.parse({**OPEN, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", **URI})
    assert spec.coordinator.startswith("10.96.0.1:")


@pytest.mark.parametrize(
    "where", [{"MASTER_ADDR": "localhost"}, {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://127.0.0.1:34911"}]
)
def test_a_loopback_address_for_ranks_on_several_machines_is_an_error(where):
    with pytest.raises(
        ClusterError, match="every machine itself, and OMPI_COMM_WORLD_LOCAL_SIZE=2 of 4 ranks"
    ):
        mpi.parse({**OPEN, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", **where})


def test_a_size_of_one_is_a_cluster_of_one():
    spec = mpi.parse({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    assert (spec.num_workers, spec.coordinator) == (1, None)


@pytest.mark.parametrize(
    ("environ", "received"),
    [
        ({"PMIX_RANK": "1"}, "PMIX_RANK without a size"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_RANK without OMPI_COMM_WORLD_SIZE"),
        ({"PMI_SIZE": "2"}, "PMI_SIZE without PMI_RANK"),
        (OPEN, "neither MASTER_ADDR nor OMPI_MCA_orte_hnp_uri"),
        ({**OPEN, "PMIX_NAMESPACE": "other"}, "neither MASTER_ADDR"),
    ],
)
def test_a_part_is_incomplete_with_the_line_that_completes_it(environ, received):
    with pytest.raises(IncompleteError) as error:
        mpi.parse(environ)
    assert received in str(error.value)
    assert "next:     mpirun -x MASTER_ADDR=host1" in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "received"),
    [
        ({"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK='4'"),
        ({"OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE='x'"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, "OMPI_COMM_WORLD_LOCAL_SIZE='5'"),
        ({"MASTER_ADDR": "a:1"}, "MASTER_ADDR='a:1'"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "x"}, "MASTER_PORT='x'"),
    ],
)
def test_a_wrong_value_is_quoted_with_its_name(wrong, received):
    with pytest.raises(ClusterError) as error:
        mpi.parse(OPEN | wrong)
    assert received in str(error.value) and not isinstance(error.value, IncompleteError)
