"""`phalanx cluster check`: a real process for each worker, one report for all."""

import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from phalanx.cluster.rendezvous import meet
from phalanx.errors import ClusterError
from phalanx.host import wire
from tests.fleet.workers import ROOT, free_ports, tf_config

SAME = "print('train')\n"


def check(folder, count=2, only=None, options=(), configs=None, environ=None):
    """Exit code, output and errors of the check on each worker."""
    ports = free_ports(count)
    running = {}
    for index in range(count) if only is None else only:
        own = folder / str(index)
        own.mkdir(exist_ok=True)
        if not (own / "train.py").exists():
            (own / "train.py").write_text(SAME)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "JAX_"))}
        config = (configs or {}).get(index) or tf_config(ports, index)
        running[index] = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "cluster", "check", *options],
            cwd=own,
            env=kept | {"TF_CONFIG": config, "PYTHONPATH": str(ROOT)} | (environ or {}).get(index, {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        said = {index: process.communicate(timeout=90) for index, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return {index: (running[index].returncode, *text) for index, text in said.items()}


def test_workers_that_reach_each_other_and_run_the_same_are_told_so_with_a_table(tmp_path):
    (tmp_path / "data").mkdir()
    found = check(tmp_path, 3, options=("--shared", "../data", "train.py"))
    for code, out, err in found.values():
        assert (code, err) == (0, "")
        assert (
            out.splitlines()[-1]
            == "3 workers, nothing is wrong: names, ports both ways, versions and script, clocks, the shared directory"
        )
    head, *rows = found[0][1].splitlines()[:7]
    assert head.split() == ["from", "to", "ms", "there", "and", "back", "MB/s"]
    assert [tuple(map(int, row.split()[:2])) for row in rows] == [
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    assert all(float(cell) >= 0 for row in rows for cell in row.split()[2:])
    assert list((tmp_path / "data").iterdir()) == []


def test_a_missing_worker_is_named_with_its_address_to_all_that_came(tmp_path):
    found = check(tmp_path, 3, only=(0, 1), options=("--timeout", "2"))
    for code, out, _ in found.values():
        assert code == 1
        assert "worker 2 (127.0.0.1:" in out and "never connected in 2 s" in out


def test_all_that_differs_is_found_at_once_and_told_to_all(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "train.py").write_text("print('another')\n")
    (tmp_path / "1" / "data").mkdir()
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "data").mkdir()
    late = tmp_path / "late"
    late.mkdir()
    (late / "sitecustomize.py").write_text("import time; now = time.time; time.time = lambda: now() - 5\n")
    found = check(
        tmp_path,
        options=("--shared", "data", "train.py"),
        environ={1: {"PYTHONPATH": f"{ROOT}{os.pathsep}{late}"}},
    )
    for code, out, _ in found.values():
        assert code == 1
        assert "All workers have the same script (SHA-256)." in out
        assert "worker 1's clock is 5.0 s behind the chief's" in out
        assert "'data' on worker 1: what the chief has just written is not there" in out
        assert "2 workers, 3 findings" in out
        assert out.count("  received: ") == out.count("  next:     ") == 3


def test_a_check_never_mixes_with_a_training(tmp_path):
    """A check that meets a run of the strategy ends both with what differs."""
    ports = free_ports(2)
    said = []

    def training():
        try:
            meet(("127.0.0.1", ports[0]), {0: "a", 1: "b"}, 0, {"jax": "1"}, 30.0)
        except ClusterError as error:
            said.append(str(error))

    chief = threading.Thread(target=training)
    chief.start()
    found = check(tmp_path, only=(1,), configs={1: tf_config(ports, 1)})
    chief.join(40)
    assert found[1][0] == 1 and "purpose: worker 1 has phalanx cluster check" in found[1][1]
    assert len(said) == 1


def test_an_address_of_another_machine_is_named(tmp_path):
    port = free_ports(1)[0]
    cluster = {"worker": [f"203.0.113.1:{port}", f"203.0.113.2:{port}"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    found = check(tmp_path, only=(0,), options=("--timeout", "2"), configs={0: config})
    assert found[0][0] == 1 and f"203.0.113.1:{port}: Cannot assign requested address" in found[0][1]


def test_one_worker_has_nothing_to_check(tmp_path):
    code, out, err = check(tmp_path, 1)[0]
    assert (code, err) == (0, "") and "1 worker, nothing is wrong" in out


@pytest.mark.parametrize(
    ("options", "received"),
    [
        (("--shared", "nowhere"), "'nowhere' is not there"),
        (("nothing.py",), "'nothing.py' is not there"),
        (("--timeout", "soon"), "--timeout soon"),
    ],
)
def test_bad_input_is_three_parts_and_exit_code_2(options, received, tmp_path):
    code, out, err = check(tmp_path, only=(0,), options=options)[0]
    assert code == 2 and not out and received in err.splitlines()[1]


HELLO = {
    "card": {"phalanx": "\x1b[2J", "$(id)": "1"},
    "host": "127.0.0.1",
    "port": 1,
    "found": ["\x1b[2J$(id)"],
}


@pytest.mark.parametrize(
    ("hello", "clock", "why", "said"),
    [
        ({"found": [1]}, 0.0, "", "nothing of it acts"),
        ({"port": float("inf")}, 0.0, "", "an answer that is none"),
        ({}, float("nan"), "", "an answer that is none: 'nan'"),
        ({}, 0.0, "no\n\n2 workers, nothing is wrong", "no 2 workers, nothing is wrong"),
        ({"found": ["no\n\n2 workers, nothing is wrong"]}, 0.0, "", "\n  2 workers, nothing is wrong"),
    ],
    ids=[
        "a finding of numbers",
        "a port without end",
        "a clock of no time",
        "a false line",
        "a false finding",
    ],
)
def test_a_worker_that_answers_nonsense_breaks_nothing_and_writes_no_line_of_ours(
    hello, clock, why, said, tmp_path
):
    ports = free_ports(2)
    out = []
    chief = threading.Thread(
        target=lambda: out.append(check(tmp_path, only=(0,), configs={0: tf_config(ports, 0)}))
    )
    chief.start()
    line = wire.connect("127.0.0.1", ports[0], wire.now() + 30)
    line.send({"phalanx": 1, "worker": 1, "workers": 2, "card": {"purpose": "phalanx cluster check"}})
    line.receive(wire.now() + 30)
    replies = {
        "hello": HELLO | {"found": [], "card": {"phalanx": "x"}} | hello,
        "clock": {"clock": clock},
        "way": {"ms": 1.0, "mb": 1.0, "why": why},
    }
    while (question := line.receive(wire.now() + 25)) is not None and question["ask"] != "end":
        line.send(replies[question["ask"]])
    line.close()
    chief.join(80)
    code, text, err = out[0][0]
    assert code == 1 and not err
    assert said in text or said == "nothing of it acts"
    assert not any(each.startswith("2 workers, nothing is wrong") for each in text.splitlines())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "worker 1 gave no answer"),
        ({"host": "$(touch owned)", "port": 1}, "an answer that is none: '$(touch owned):1'"),
        ({"error": "\x1b[2Jno"}, "?[2Jno"),
    ],
)
def test_a_worker_that_goes_away_or_lies_is_named_and_nothing_of_it_acts(answer, said, tmp_path):
    ports = free_ports(2)
    out = []
    chief = threading.Thread(
        target=lambda: out.append(check(tmp_path, only=(0,), configs={0: tf_config(ports, 0)}))
    )
    chief.start()
    line = wire.connect("127.0.0.1", ports[0], wire.now() + 30)
    line.send({"phalanx": 1, "worker": 1, "workers": 2, "card": {"purpose": "phalanx cluster check"}})
    assert line.receive(wire.now() + 30) == {"welcome": 2}
    if answer is not None:
        for reply in (HELLO | answer, {"clock": 0.0}):
            line.receive(wire.now() + 30)
            line.send(reply)
    line.socket.shutdown(socket.SHUT_RDWR)
    line.close()
    chief.join(60)
    code, text, err = out[0][0]
    assert code == 1 and said in text and not err
    assert all(each.isprintable() for each in text.splitlines())
    assert not (tmp_path / "0" / "owned").exists()
