"""The first meeting of workers and the watch that stays: real sockets, threads for workers, every wait with a deadline."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from phalanx.cluster.rendezvous import judge, meet
from phalanx.cluster.vigil import Vigil
from phalanx.errors import ClusterError
from phalanx.host import wire

CARD = {"jax": "1.0"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as executor:
        yield executor


def meeting(pool, count, *, cards=None, indices=None, timeout=10.0, port=None):
    """Every worker's lines, or the error that it got."""
    port = port or free_port()
    names = {i: f"127.0.0.1:{port + i}" for i in range(count)}

    def one(place, index):
        try:
            return meet(("127.0.0.1", port), names, index, (cards or {}).get(place, CARD), timeout)
        except ClusterError as error:
            return error

    waiting = [pool.submit(one, place, index) for place, index in enumerate(indices or range(count))]
    return [each.result(timeout=30) for each in waiting]


def close(*found):
    for lines in found:
        for line in lines.values() if isinstance(lines, dict) else ():
            line.close()


def test_all_meet_and_keep_a_line(pool):
    chief, *others = meeting(pool, 3)
    assert sorted(chief) == [1, 2]
    assert [sorted(each) for each in others] == [[0], [0]]
    chief[2].send({"word": "hello"})
    assert others[1][0].receive(wire.now() + 5) == {"word": "hello"}
    close(chief, *others)


def test_one_worker_meets_nobody():
    assert meet(("127.0.0.1", 1), {0: "here"}, 0, CARD, 1.0) == {}


def test_who_is_missing_is_named_on_the_chief_and_told_to_those_who_came(pool):
    chief, other = meeting(pool, 3, indices=[0, 1], timeout=1.0)
    for error in (chief, other):
        assert isinstance(error, ClusterError)
        assert "worker 2 (127.0.0.1:" in str(error) and "never connected in 1 s" in str(error)


def test_another_version_or_script_is_named_with_both_values(pool):
    found = meeting(pool, 2, cards={1: {"jax": "2.0"}})
    for error in found:
        assert "jax: worker 1 has 2.0, the chief 1.0" in str(error)


def test_two_workers_of_one_index_are_named(pool):
    found = meeting(pool, 3, indices=[0, 1, 1], timeout=5.0)
    assert all(isinstance(error, ClusterError) for error in found)
    assert any("two processes say that they are worker 1" in str(error) for error in found)


def test_a_port_that_is_taken_is_named(pool):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port}: Address already in use"):
            meet(("127.0.0.1", port), {0: "a", 1: "b"}, 0, CARD, 1.0)


def test_strangers_at_the_port_do_no_harm(pool):
    port = free_port()
    chief = pool.submit(meet, ("127.0.0.1", port), {0: "a", 1: "b"}, 0, CARD, 10.0)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100 + b"\n", b'{"phalanx": 2}\n', b"[1]\n", b""):
        stranger = wire.connect("127.0.0.1", port, wire.now() + 5)
        stranger.socket.sendall(said)
        stranger.close()
    other = meet(("127.0.0.1", port), {0: "a", 1: "b"}, 1, CARD, 10.0)
    close(other, chief.result(timeout=10))


@pytest.mark.parametrize(
    "hello",
    [
        {"worker": 5, "workers": 2, "card": CARD},
        {"worker": 1, "workers": 3, "card": CARD},
        {"worker": "1; rm", "workers": 2, "card": CARD},
        {"worker": 1, "workers": 2, "card": "x"},
        {},
    ],
)
def test_a_hello_of_another_cluster_is_refused(hello):
    assert isinstance(judge(hello, 0, {0: "a", 1: "b"}, CARD, {}), ClusterError)


def test_strangers_that_say_nothing_keep_nobody_waiting(pool, monkeypatch):
    """More of them than the timeout has patience for one by one; some begin to speak, and some are too many."""
    monkeypatch.setattr(wire, "_MOST_SILENT", 4)
    port, names = free_port(), {0: "a", 1: "b"}
    chief = pool.submit(meet, ("127.0.0.1", port), names, 0, CARD, 20.0)
    strangers = [wire.connect("127.0.0.1", port, wire.now() + 10) for _ in range(8)]
    strangers[0].socket.sendall(b"GET / HTTP/1.1")
    other = meet(("127.0.0.1", port), names, 1, CARD, 20.0)
    lines = chief.result(timeout=30)
    assert sorted(lines) == [1] and sorted(other) == [0]
    close(lines, other, dict(enumerate(strangers)))


def test_messages_longer_than_64_kib_count_as_nothing():
    left, right = socket.socketpair()
    sender = threading.Thread(target=lambda: wire.Wire(left).send({"x": "y" * 200_000}))
    sender.start()
    assert wire.Wire(right).receive(wire.now() + 5) is None
    right.close()
    sender.join(10)
    left.close()


# ------------------------------------------------------------------------------------ the watch


class Watched:
    """Vigils of a chief and two workers over real lines."""

    def __init__(self, pool, timeout=1.5):
        self.losses = {0: [], 1: [], 2: []}
        self.heard = {index: threading.Event() for index in self.losses}
        self.lines = meeting(pool, 3)
        self.vigils = [
            Vigil(lines, timeout, lambda i=i: f"place {i}", lambda loss, i=i: self.note(i, loss))
            for i, lines in enumerate(self.lines)
        ]

    def note(self, index, loss):
        self.losses[index].append(str(loss))
        self.heard[index].set()

    def end(self):
        for vigil in self.vigils:
            vigil.end()


def test_a_worker_whose_line_ends_is_named_to_all_with_its_last_place(pool):
    watched = Watched(pool)
    for _ in range(200):
        if watched.vigils[0]._places[1] == "place 1":
            break
        watched.vigils[0].wait_for_loss(0.05)
    watched.lines[1][0].socket.shutdown(socket.SHUT_RDWR)
    assert watched.heard[0].wait(10) and watched.heard[2].wait(10)
    watched.end()
    for index in (0, 2):
        (loss,) = watched.losses[index]
        assert loss == "worker 1 closed its connection: its process has ended; it was last at place 1"


def test_a_silent_worker_is_named_after_the_timeout(pool):
    lines = meeting(pool, 2)
    found = []
    vigil = Vigil(lines[0], 0.6, lambda: "here", found.append)
    assert vigil.wait_for_loss(10) is not None  # the other side never beats
    vigil.end()
    close(lines[1])
    assert "worker 1 was silent for 0.6 s" in str(found[0])


def test_goodbyes_are_no_losses(pool):
    watched = Watched(pool)
    watched.vigils[1].end()
    watched.vigils[2].end()
    watched.vigils[0].wait_for_goodbyes(10)
    watched.vigils[0].end()
    assert watched.losses == {0: [], 1: [], 2: []}
    assert watched.vigils[0].loss is None
