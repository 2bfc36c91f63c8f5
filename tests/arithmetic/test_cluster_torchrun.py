"""MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE."""

import pytest

from phalanx import ClusterError
from phalanx.cluster import torchrun
from phalanx.cluster.fields import IncompleteError

FOUR = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "RANK": "3", "WORLD_SIZE": "4"}


def test_without_them_there_is_nothing_to_say():
    assert torchrun.parse({"LOCAL_RANK": "0"}) is None


def test_the_coordinator_and_the_number_are_known_and_the_other_addresses_are_not():
    spec = torchrun.parse(FOUR)
    assert (spec.num_workers, spec.index, spec.coordinator, spec.count) == (4, 3, "node1:29500", 4)
    assert "addresses unknown" in str(spec)


def test_a_world_of_one_is_a_cluster_of_one():
    spec = torchrun.parse({**FOUR, "RANK": "0", "WORLD_SIZE": "1"})
    assert (spec.num_workers, spec.is_chief) == (1, True)


@pytest.mark.parametrize(("port", "expected"), [("29500", 29501), ("65535", 65534)])
def test_under_torchrun_itself_the_workers_meet_beside_its_own_store(port, expected):
    spec = torchrun.parse({**FOUR, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert spec.coordinator == f"node1:{expected}"
    assert spec.notes == (f"port {port} is that of torchrun's own store; the workers meet at {expected}",)


def test_what_torchrun_sets_on_one_machine():
    """The variables of torchrun of torch 2, as they were printed; its store had the port, the next was free."""
    spec = torchrun.parse(
        {
            "GROUP_RANK": "0",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "35223",
            "RANK": "1",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": "2",
        }
    )
    assert (spec.num_workers, spec.index, spec.coordinator) == (2, 1, "localhost:35224")


def test_a_store_that_the_workers_make_leaves_the_port_free():
    assert torchrun.parse({**FOUR, "TORCHELASTIC_USE_AGENT_STORE": "False"}).coordinator == "node1:29500"


@pytest.mark.parametrize("missing", FOUR)
def test_one_missing_is_incomplete_and_named(missing):
    environ = {name: value for name, value in FOUR.items() if name != missing}
    with pytest.raises(IncompleteError) as error:
        torchrun.parse(environ)
    assert f"without {missing}" in str(error.value)
    assert f"next:     export {missing}=" in str(error.value)
    with pytest.raises(IncompleteError):
        torchrun.parse({**FOUR, missing: ""})


def test_a_loopback_address_serves_where_all_workers_are_on_one_machine():
    near = {**FOUR, "MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "4"}
    assert torchrun.parse(near).coordinator == "127.0.0.1:29500"
    with pytest.raises(
        ClusterError, match=r"MASTER_ADDR='127.0.0.1', which is every machine itself, and 2 of 4"
    ):
        torchrun.parse({**near, "LOCAL_WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("wrong", "received"),
    [
        ({"RANK": "4"}, "RANK='4'"),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"RANK": "1.0"}, "RANK='1.0'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE='four'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT='0'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT='65536'"),
        ({"MASTER_PORT": "tcp://10.0.0.1:2222"}, "MASTER_PORT='tcp://10.0.0.1:2222'"),
        ({"MASTER_ADDR": "node1:29500"}, "MASTER_ADDR='node1:29500'"),
        ({"MASTER_ADDR": "no de"}, "MASTER_ADDR='no de'"),
    ],
)
def test_a_wrong_value_is_quoted_with_its_name(wrong, received):
    with pytest.raises(ClusterError) as error:
        torchrun.parse({**FOUR, **wrong})
    assert not isinstance(error.value, IncompleteError)
    assert received in str(error.value).splitlines()[1]


def test_a_port_that_kubernetes_set_for_a_service_called_master_is_explained():
    with pytest.raises(ClusterError, match="this value is Kubernetes's"):
        torchrun.parse({**FOUR, "MASTER_PORT": "tcp://10.0.0.1:2222"})
