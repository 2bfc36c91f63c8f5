"""ClusterSpec: workers that can find each other, or an error that quotes what cannot be."""

import dataclasses

import pytest

from phalanx import ClusterError
from phalanx.cluster import ClusterSpec
from phalanx.cluster.spec import is_host, is_loopback, join
from phalanx.world import World

TWO = (("a", 2222), ("b", 2222))


def spec(workers=TWO, **others):
    return ClusterSpec(workers=workers, source="mine", **others)


def rows(text):
    return [tuple(part.strip() for part in line.split("  ", 1)) for line in text.splitlines()]


def test_a_cluster_knows_its_workers_its_chief_and_where_they_meet():
    two = spec(index=1)
    assert (two.num_workers, two.index, two.chief, two.is_chief) == (2, 1, 0, False)
    assert (two.addresses, two.coordinator) == (("a:2222", "b:2222"), "a:2222")
    assert spec(index=0).is_chief


def test_a_cluster_of_one_needs_no_port_and_is_no_special_case():
    one = spec(workers=(("localhost", None),))
    assert (one.num_workers, one.index, one.is_chief, one.coordinator) == (1, 0, True, None)
    assert one.addresses == ("localhost",)
    assert one.world(4) == World(processes=1, process=0, replicas_per_process=4)


def test_a_cluster_of_which_only_the_coordinator_is_known_knows_its_number_of_workers():
    partial = spec(workers=(("a", 29500),), count=8, index=7)
    assert (partial.num_workers, partial.coordinator, partial.addresses) == (8, "a:29500", ("a:29500",))
    assert partial.world() == World(processes=8, process=7)
    assert ("other workers", "addresses unknown; they meet at the coordinator") in rows(str(partial))


def test_another_chief_hosts_the_coordinator():
    assert spec(chief=1).coordinator == "b:2222"


def test_a_cluster_prints_as_a_table_with_its_notes():
    assert rows(str(spec(index=1, notes=("one", "two")))) == [
        ("setting", "value"),
        ("source", "mine"),
        ("workers", "2"),
        ("this worker", "1"),
        ("chief", "0"),
        ("coordinator", "a:2222"),
        ("worker 0", "a:2222, the chief"),
        ("worker 1", "b:2222, this process"),
        ("note", "one"),
        ("note", "two"),
    ]


def test_a_thousand_workers_print_as_a_few_lines_with_the_chief_this_one_and_the_last():
    printed = rows(str(spec(workers=tuple((f"n{i}", 1) for i in range(1000)), index=500)))
    assert len(printed) < 20
    shown = [name for name, _ in printed if name.startswith("worker ")]
    assert shown == [f"worker {i}" for i in (0, 1, 2, 3, 4, 5, 6, 7, 500, 999)]
    assert ("...", "990 more") in printed


WRONG = {
    "a list": ({"workers": [("a", 1)]}, "workers=[('a', 1)]"),
    "text instead of a pair": ({"workers": ("a:1", "b:1")}, "workers=('a:1', 'b:1')"),
    "no worker": ({"workers": ()}, "0 addresses"),
    "a count and all addresses": ({"count": 2}, "2 addresses, count=2"),
    "no count": ({"workers": (("a", 1),), "count": 0}, "0 workers"),
    "a count that is no number": ({"workers": (("a", 1),), "count": "2"}, "'2' workers"),
    "an index too large": ({"index": 2}, "this worker's index is 2"),
    "a negative index": ({"index": -1}, "this worker's index is -1"),
    "an index that is no number": ({"index": "0"}, "this worker's index is '0'"),
    "True as an index": ({"index": True}, "this worker's index is True"),
    "a chief that is not there": ({"chief": 2}, "the chief's index is 2"),
    "an unknown chief": ({"workers": (("a", 1),), "count": 3, "chief": 1}, "the chief is worker 1"),
    "equal addresses": ({"workers": (("a", 1), ("b", 1), ("a", 1))}, "workers 0 and 2 are both at a:1"),
    "equal but for case": ({"workers": (("Node", 1), ("node", 1))}, "workers 0 and 1 are both at node:1"),
    "equal but for a name": (
        {"workers": (("localhost", 1), ("127.0.0.1", 1))},
        "workers 0 and 1 are both at 127.0.0.1:1",
    ),
    "port 0": ({"workers": (("a", 0),)}, "worker 0 is at port 0"),
    "port 65536": ({"workers": (("a", 1), ("b", 65536))}, "worker 1 is at port 65536"),
    "a port that is no number": ({"workers": (("a", "1"),)}, "worker 0 is at port '1'"),
    "no port among several": ({"workers": (("a", 1), ("b", None))}, "worker 1 is at b without one"),
    "no port of the coordinator": ({"workers": (("a", None),), "count": 2}, "worker 0 is at a without one"),
    "no host": ({"workers": (("a", 1), ("", 1))}, "worker 1 has none"),
    "two words": ({"workers": (("a b", 1),)}, "worker 0 is at 'a b'"),
    "no text": ({"workers": ((None, 1),)}, "worker 0 is at None"),
    "every interface": ({"workers": (("0.0.0.0", 1),)}, "worker 0 is at '0.0.0.0'"),
    "every interface, IPv6": ({"workers": (("::", 1),)}, "worker 0 is at '::'"),
    "loopback among others": (
        {"workers": (("a", 1), ("localhost", 1))},
        "worker 1 is at localhost:1, which is every machine itself, and worker 0 is at a:1",
    ),
    "127.0.1.1 among others": (
        {"workers": (("127.0.1.1", 1), ("10.0.0.2", 1))},
        "worker 0 is at 127.0.1.1:1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_an_error_of_three_parts_that_quotes_it(case):
    wrong, received = WRONG[case]
    with pytest.raises(ClusterError) as error:
        spec(**wrong)
    rule, second, third = str(error.value).splitlines()
    assert second.startswith("  received: mine: ") and received in second
    assert third.startswith("  next:     ") and len(third) > 12


def test_several_workers_on_loopback_are_one_machine():
    assert spec(workers=(("localhost", 1), ("127.0.0.1", 2), ("::1", 3))).num_workers == 3


def test_two_loopback_addresses_are_two():
    assert spec(workers=(("127.0.0.1", 1), ("127.0.0.2", 1))).num_workers == 2


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost.localdomain",
        "a.localhost",
        "127.1",
        "127.0.1.1",
        "::1",
        "ip6-localhost",
    ],
)
def test_names_of_this_machine_for_itself_are_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["node1", "10.0.0.1", "localhost.example.com", "127", "1270.0.0.1", "fe80::1", "::"]
)
def test_other_names_are_not_loopback(host):
    assert is_loopback(host) is (
        host == "127"
    )  # the C library reads 127 as 0.0.0.127; refused with the others


@pytest.mark.parametrize(
    "host", ["a", "node-1.example.com", "node_1", "10.0.0.1", "fe80::1", "fe80::1%eth0", "::1", "a."]
)
def test_names_and_addresses_are_hosts(host):
    assert is_host(host)


@pytest.mark.parametrize(
    "host", ["", " ", "-a", "a b", "$(id)", "a;b", "a\n", "é", "a/b", "g::1", "1:2", "a" * 254, "::1%$(id)"]
)
def test_other_text_is_no_host(host):
    assert not is_host(host)


def test_addresses_are_written_with_brackets_where_colons_would_confuse():
    assert (join("a", 1), join("::1", 1), join("::1", None)) == ("a:1", "[::1]:1", "[::1]")


def test_a_cluster_is_a_value():
    assert spec() == spec() != spec(index=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec().index = 1
    with pytest.raises(TypeError):
        ClusterSpec(TWO, "mine")
