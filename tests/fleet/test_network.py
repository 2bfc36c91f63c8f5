"""Workers on hosts of their own: addresses, names, a link that is cut, a link that is slow, and who can get in."""

import json

import pytest

from tests.fleet.hosts import Hosts, listening, missing
from tests.fleet.test_equal_to_one_device import ALONE, WORK
from tests.fleet.test_lost_workers import ENDLESS
from tests.fleet.workers import Fleet, assert_close, run


@pytest.fixture
def hosts():
    """Two hosts, or a skip that says why not."""
    if (why := missing()) is not None:
        pytest.skip(why)
    with Hosts() as built:
        yield built


PORT = 7701  # each host has all ports to itself


def places(names, count=2):
    """TF_CONFIG of each worker."""
    cluster = {"worker": [f"{name}:{PORT}" for name in names]}
    return {i: json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}) for i in range(count)}


def on(hosts, names=None):
    return {"configs": places(names or hosts.names), "prefixes": {i: hosts.inside(i) for i in range(2)}}


def test_hosts_that_know_each_other_by_name_equal_one_device_also_over_a_slow_link(hosts, tmp_path):
    """Each host's own name is 127.0.1.1, as Debian writes it; a slow link changes when, never what."""
    hosts.slow(1, "5mbit")
    for name in ("alone", "two"):
        (tmp_path / name).mkdir()
    (alone,) = run(ALONE, tmp_path / "alone", count=1)[0]
    found = run(WORK, tmp_path / "two", **on(hosts))
    assert_close(found[0][0], alone)
    assert found[1] == found[0]


def test_workers_listen_on_the_address_that_the_cluster_names_and_a_cut_link_is_named_on_both_sides(
    hosts, tmp_path
):
    with Fleet(ENDLESS, tmp_path, **on(hosts)) as fleet:
        assert fleet.line(0) == fleet.line(1) == "training"
        for index in (0, 1):
            assert listening(fleet.running[index].pid) == {hosts.addresses[index]}
        hosts.cut(1)
        for index in (0, 1):
            named = fleet.running[index].stderr.readline()
            while named and "phalanx: " not in named:
                named = fleet.running[index].stderr.readline()
            assert f"worker {1 - index} was silent for 5 s: it stands still or is cut off" in named
            assert "of epoch 1" in named
        ended = fleet.wait(60)
    assert {i: each.code for i, each in ended.items()} == {0: 76, 1: 76}  # both, and nobody hangs


def test_a_worker_whose_own_name_is_loopback_is_refused_before_it_connects(hosts, tmp_path):
    """Reports, row 4."""
    hosts.write_hosts(1, f"127.0.0.1 localhost\n127.0.1.1 node1\n{hosts.addresses[0]} node0\n")
    with Fleet("cluster()", tmp_path, only=[1], **on(hosts)) as fleet:
        ended = fleet.wait(60)[1]
    assert ended.code == 1 and "ClusterError" in ended.err
    assert "on worker 1, node1 is 127.0.1.1" in ended.err and "/etc/hosts" in ended.err


def check(hosts, folder):
    (folder / "train.py").write_text("")
    script = """
from phalanx.cli.main import main
main(["cluster", "check", "--timeout", "5"])
"""
    with Fleet(script, folder, **on(hosts)) as fleet:
        return fleet.wait(60)


def test_a_check_over_the_network_measures_the_slow_way(hosts, tmp_path):
    hosts.slow(1, "50mbit")  # 6.25 MB/s
    ended = check(hosts, tmp_path)
    assert [ended[i].code for i in (0, 1)] == [0, 0], ended
    fast, slow = ended[0].out.splitlines()[1:3]
    assert float(slow.split()[3]) < 8 < float(fast.split()[3])


@pytest.mark.parametrize("how", ["loopback", "no address"])
def test_a_check_names_a_name_that_means_loopback_or_nothing(how, hosts, tmp_path):
    line = "127.0.1.1 node1\n" if how == "loopback" else ""
    hosts.write_hosts(1, f"127.0.0.1 localhost\n{line}{hosts.addresses[0]} node0\n")
    ended = check(hosts, tmp_path)
    assert ended[1].code == 1
    wanted = (
        "on worker 1, node1 is 127.0.1.1" if how == "loopback" else "on worker 1, node1 (worker 1) has none"
    )
    assert wanted in ended[1].out and ended[0].code == 1
