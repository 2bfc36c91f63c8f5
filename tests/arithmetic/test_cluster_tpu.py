"""Cloud TPU: hosts of a slice and of several slices."""

import pytest

from phalanx import ClusterError
from phalanx.cluster import tpu
from phalanx.cluster.fields import IncompleteError

TWO = {"TPU_WORKER_HOSTNAMES": "t0.svc,t1.svc", "TPU_WORKER_ID": "1"}
SLICES = {
    "MEGASCALE_NUM_SLICES": "3",
    "MEGASCALE_SLICE_ID": "2",
    "MEGASCALE_COORDINATOR_ADDRESS": "c0.svc:8080",
}


@pytest.mark.parametrize(
    "environ",
    [{}, {"TPU_WORKER_ID": "0"}, {"TPU_PROCESS_BOUNDS": "1,1,1"}, {"TPU_ACCELERATOR_TYPE": "v5litepod-8"}],
)
def test_a_single_host_has_nothing_to_say(environ):
    assert tpu.parse(environ) is None


def test_hosts_of_a_slice_are_counted_by_their_list():
    spec = tpu.parse(TWO)
    assert (spec.index, spec.addresses) == (1, ("t0.svc:8482", "t1.svc:8482"))
    assert tpu.parse({**TWO, "JAX_COORDINATOR_PORT": "6002"}).coordinator == "t0.svc:6002"


def test_process_addresses_stand_before_names_of_hosts():
    spec = tpu.parse({**TWO, "TPU_PROCESS_ADDRESSES": "a:8476,b:8476,c:8476"})
    assert [host for host, _ in spec.workers] == ["a", "b", "c"]


@pytest.mark.parametrize("index", [{}, {"TPU_WORKER_ID": "0"}])
def test_localhost_is_a_cluster_of_one(index):
    assert tpu.parse({"TPU_WORKER_HOSTNAMES": "localhost", **index}).num_workers == 1


def test_several_slices_meet_at_their_coordinator_and_are_counted_through():
    spec = tpu.parse(TWO | SLICES)
    assert (spec.num_workers, spec.index, spec.coordinator) == (6, 5, "c0.svc:8482")
    assert spec.notes == ("3 slices of 2 hosts; this is slice 2",)


@pytest.mark.parametrize(
    ("environ", "received"),
    [
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_WORKER_HOSTNAMES without TPU_WORKER_ID"),
        ({"TPU_WORKER_ID": "1"}, "TPU_WORKER_ID=1 without TPU_WORKER_HOSTNAMES"),
        ({"TPU_HOST_BOUNDS": "2,2,1"}, "TPU_HOST_BOUNDS='2,2,1' is several hosts"),
        ({"MEGASCALE_NUM_SLICES": "2"}, "MEGASCALE_NUM_SLICES without TPU_WORKER_HOSTNAMES"),
        (TWO | {"MEGASCALE_NUM_SLICES": "2"}, "without MEGASCALE_SLICE_ID, MEGASCALE_COORDINATOR_ADDRESS"),
    ],
)
def test_several_hosts_without_all_their_variables_are_never_quietly_one(environ, received):
    with pytest.raises(IncompleteError) as error:
        tpu.parse(environ)
    assert received in str(error.value) and "next:     export " in str(error.value)


@pytest.mark.parametrize(
    ("environ", "received"),
    [
        ({**TWO, "TPU_WORKER_ID": "2"}, "TPU_WORKER_ID='2'"),
        ({**TWO, "TPU_WORKER_HOSTNAMES": "a,,b"}, "TPU_WORKER_HOSTNAMES=''"),
        ({**TWO, "TPU_WORKER_HOSTNAMES": "a,a"}, "both at a:8482"),
        ({**TWO, **SLICES, "MEGASCALE_SLICE_ID": "3"}, "MEGASCALE_SLICE_ID='3'"),
        ({"TPU_HOST_BOUNDS": "$(id)"}, "TPU_HOST_BOUNDS='$(id)'"),
    ],
)
def test_a_wrong_value_is_quoted_with_its_name(environ, received):
    with pytest.raises(ClusterError) as error:
        tpu.parse(environ)
    assert received in str(error.value)
