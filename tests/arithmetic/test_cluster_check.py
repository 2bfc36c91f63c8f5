"""What a check's reports mean: pure judgement."""

import pytest

from phalanx.cluster import ClusterSpec, check
from phalanx.cluster.check import Line, Report

TWO = ClusterSpec(workers=(("a", 1), ("b", 1)), source="mine")


@pytest.mark.parametrize("address", ["127.0.1.1", "::1", "127.0.0.1"])
def test_a_name_that_means_the_machine_itself_is_found_among_several_machines(address):
    (found,) = check.names(TWO, {"a": ["10.0.0.1"], "b": ["10.0.0.2", address]})
    assert f"on worker 0, b is {address}" in found and "/etc/hosts" in found


def test_a_name_that_means_this_machine_and_nothing_else_is_refused_at_the_start():
    assert "on worker 0, b is 127.0.1.1" in check.itself(TWO, {"a": ["10.0.0.1"], "b": ["127.0.1.1"]})
    assert (
        check.itself(TWO, {"a": [], "b": ["10.0.0.2", "::1"]}) is None
    )  # not yet known; one of them will do
    assert (
        check.itself(
            ClusterSpec(workers=(("localhost", 1), ("localhost", 2)), source="mine"), {"localhost": ["::1"]}
        )
        is None
    )


def test_a_name_without_an_address_is_found():
    (found,) = check.names(TWO, {"a": ["10.0.0.1"], "b": []})
    assert "on worker 0, b (worker 1) has none" in found and "getent hosts b" in found


def test_workers_of_one_machine_may_be_on_loopback():
    spec = ClusterSpec(workers=(("localhost", 1), ("localhost", 2)), source="mine")
    assert check.names(spec, {"localhost": ["127.0.0.1"]}) == []


def test_each_thing_that_differs_is_one_finding_with_the_workers():
    found = check.cards({0: {"jax": "1", "keras": "3"}, 1: {"jax": "1", "keras": "4"}, 2: {"keras": "5"}}, 0)
    assert len(found) == 2
    assert (
        "keras" in found[1]
        and "worker 1 has '4', worker 2 has '5'" in found[1]
        and "pip install keras==3" in found[1]
    )


@pytest.mark.parametrize(
    ("ahead", "words"), [(0.9, None), (-0.9, None), (2.5, "2.5 s ahead of"), (-61.0, "61.0 s behind")]
)
def test_clocks_may_differ_by_a_second(ahead, words):
    found = check.clocks({1: ahead})
    assert bool(found) == (words is not None) and (words is None or words in found[0])


def test_a_way_that_is_closed_is_named_with_both_ends():
    lines = [
        Line(source=0, target=1, milliseconds=0.1, megabytes=900),
        Line(source=1, target=0, error="timed out"),
    ]
    (found,) = check.ways(lines, {0: ("a", 40_000), 1: ("b", 40_001)})
    assert "from worker 1 to worker 0 (a:40000): timed out" in found
    assert str(Report(workers=2, findings=[found], lines=lines)).splitlines()[4:] == [
        "from  to  ms there and back  MB/s",
        "   0   1               0.10   900",
        "   1   0                  -     -",
        "",
        "2 workers, 1 finding",
    ]


@pytest.mark.parametrize("count", [2, 3, 8, 9, 40])
def test_each_worker_is_reached_and_reaches_somebody_and_the_chief(count):
    ways = check.pairs(count)
    assert len(set(ways)) == len(ways) and all(one != other for one, other in ways)
    assert {(one, 0) for one in range(1, count)} | {(0, one) for one in range(1, count)} <= set(ways)


def test_a_hostile_folder_is_quoted_and_never_in_the_line_to_paste():
    (found,) = check.shared("$(touch owned)\n", {1: "no"})
    rule, received, paste = found.splitlines()
    assert r"'$(touch owned)\n'" in received and "touch" not in paste
