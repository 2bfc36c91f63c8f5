"""The way to a peer is measured whatever else is connected; what is found fits into the message that tells it."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from phalanx.cluster import ClusterSpec
from phalanx.cluster.inspection import inspect
from phalanx.cluster.rendezvous import never_connected
from phalanx.host import probe, wire
from tests.doors.test_rendezvous import free_port


def test_strangers_that_say_nothing_or_stop_half_way_keep_nobody_waiting():
    with probe.answering("127.0.0.1") as port:
        strangers = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(20)]
        for line in strangers[:10]:
            line.sendall(b"b" + bytes(1000))  # the beginning of a measurement
        for _ in range(2):
            found = probe.measure("127.0.0.1", port, 20.0)
            assert isinstance(found, probe.Way), found
            assert found.milliseconds > 0 and found.megabytes > 0
        for line in strangers:
            line.close()


def test_of_too_many_strangers_the_longest_silent_are_let_go(monkeypatch):
    monkeypatch.setattr(probe, "_MOST", 3)
    with probe.answering("127.0.0.1") as port:
        strangers = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(8)]
        assert isinstance(probe.measure("127.0.0.1", port, 20.0), probe.Way)
        assert strangers[0].recv(1) == b"", "closed"
        strangers[-1].sendall(b"p")
        assert strangers[-1].recv(1) == b"k", "kept"
        for line in strangers:
            line.close()


def test_findings_of_many_bytes_are_told_as_far_as_a_message_holds_them():
    """Twenty texts of a thousand characters, each of six bytes on the way: more than a message may have."""
    port = free_port()
    spec = ClusterSpec(workers=(("127.0.0.1", port), ("127.0.0.1", port + 1)), source="mine")
    long = ["\u0142" * 1000] * 20
    hello = {"card": {}, "host": "127.0.0.1", "port": port, "found": long}
    answers = {"hello": hello, "clock": {"clock": 0.0}, "way": {"ms": 1.0, "mb": 1.0, "why": ""}}
    with ThreadPoolExecutor(1) as pool:
        chief = pool.submit(inspect, spec, 20.0)
        line = wire.connect("127.0.0.1", port, wire.now() + 20)
        line.send({"phalanx": 1, "worker": 1, "workers": 2, "card": {"purpose": "phalanx cluster check"}})
        assert line.receive(wire.now() + 20) == {"welcome": 2}
        while (question := line.receive(wire.now() + 25)) is not None and question["ask"] != "end":
            text = json.dumps(answers[question["ask"]], ensure_ascii=False)
            line.socket.sendall(text.encode() + b"\n")
        line.close()
        report = chief.result(timeout=60)
    assert question is not None, "the chief's last word arrived"
    assert set(question["findings"][:-1]) == {long[0]} and len(question["findings"]) < 20
    assert (
        f"{len(report.findings) - len(question['findings']) + 1} more were found" in question["findings"][-1]
    )


@pytest.mark.parametrize("count", [1, 20, 5000])
def test_missing_workers_are_named_as_far_as_a_message_holds_them(count):
    workers = {worker: f"10.0.0.1:{worker}" for worker in range(count + 1)}
    text = str(never_connected(list(range(1, count + 1)), workers, 5.0))
    assert text.count("never connected") == min(count, 20) and len(json.dumps(text)) < 64 * 1024
    assert ("4980 more did not" in text) == (count == 5000)
