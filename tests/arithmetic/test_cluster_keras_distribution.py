"""KERAS_DISTRIBUTION_*: the words of keras.distribution.initialize, checked."""

import pytest

from phalanx import ClusterError
from phalanx.cluster import keras_distribution

BOTH = "10.0.0.1:1234,10.0.0.2:2345"


def parse(addresses=None, count=None, index=None):
    values = {"JOB_ADDRESSES": addresses, "NUM_PROCESSES": count, "PROCESS_ID": index}
    return keras_distribution.parse(
        {f"KERAS_DISTRIBUTION_{name}": value for name, value in values.items() if value is not None}
    )


def test_without_them_there_is_nothing_to_say():
    assert keras_distribution.parse({"KERAS_BACKEND": "jax"}) is None
    assert parse("", "", "") is None


@pytest.mark.parametrize("index", [0, 1])
def test_the_example_of_keras_is_two_workers(index):
    spec = parse(BOTH, "2", str(index))
    assert (spec.num_workers, spec.index, spec.is_chief) == (2, index, index == 0)
    assert (spec.coordinator, spec.addresses) == ("10.0.0.1:1234", ("10.0.0.1:1234", "10.0.0.2:2345"))


def test_the_coordinators_address_alone_is_enough():
    spec = parse("10.0.0.1:1234", "8", "7")
    assert (spec.num_workers, spec.index, spec.coordinator, spec.count) == (8, 7, "10.0.0.1:1234", 8)


def test_the_number_may_be_left_out_where_all_addresses_are_there_and_a_note_says_so():
    spec = parse(BOTH, None, "1")
    assert (spec.num_workers, spec.index) == (2, 1)
    assert "NUM_PROCESSES is not set: 2" in spec.notes[0]


def test_one_process_is_a_cluster_of_one():
    assert (parse("a:1", "1", "0").num_workers, parse("a:1", "1", "0").count) == (1, None)


WRONG = {
    "no addresses": (
        (None, "2", "0"),
        "NUM_PROCESSES, KERAS_DISTRIBUTION_PROCESS_ID without KERAS_DISTRIBUTION_JOB",
    ),
    "no index": ((BOTH, "2", None), "without KERAS_DISTRIBUTION_PROCESS_ID"),
    "one address and no number": (("a:1", None, "0"), "without KERAS_DISTRIBUTION_NUM_PROCESSES"),
    "only an index": (
        (None, None, "0"),
        "without KERAS_DISTRIBUTION_JOB_ADDRESSES, KERAS_DISTRIBUTION_NUM_PROCESSES",
    ),
    "two addresses for three": (
        (BOTH, "3", "0"),
        "2 in KERAS_DISTRIBUTION_JOB_ADDRESSES, and KERAS_DISTRIBUTION_NUM_PROCESSES=3",
    ),
    "index 2 of 2": ((BOTH, "2", "2"), "KERAS_DISTRIBUTION_PROCESS_ID='2'"),
    "no number": ((BOTH, "two", "0"), "KERAS_DISTRIBUTION_NUM_PROCESSES='two'"),
    "no port": (("10.0.0.1,10.0.0.2", "2", "0"), "KERAS_DISTRIBUTION_JOB_ADDRESSES[0]='10.0.0.1'"),
    "an empty address": (("a:1,", "2", "0"), "KERAS_DISTRIBUTION_JOB_ADDRESSES[1]=''"),
    "equal addresses": (("a:1,a:1", "2", "0"), "workers 0 and 1 are both at a:1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_an_error_that_names_the_variable(case):
    values, received = WRONG[case]
    with pytest.raises(ClusterError) as error:
        parse(*values)
    assert received in str(error.value).splitlines()[1]
    assert str(error.value).splitlines()[2].startswith("  next:     ")
