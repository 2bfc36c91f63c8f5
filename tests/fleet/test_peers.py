"""The benchmark of several workers runs, says who is missing, and ends what it started."""

import json
import os
import subprocess
import sys

import pytest

from tests.fleet.workers import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def turns(monkeypatch):
    """The driver's side, imported as the script does."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import turns

    yield turns
    del sys.modules["turns"]


def test_smoke_compares_who_is_there_and_names_who_is_not(tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, str(BENCHMARKS / "multi_worker.py"), "--smoke", "--out", str(out)]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "KERAS_", "TF_"))}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    (timing,) = figures["timings"]
    taken = timing["ms_per_step"]
    assert {"phalanx", "hand-written, flat"} <= taken.keys()
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in taken.values())
    assert set(taken) | set(figures["missing"]) == {
        "phalanx",
        "hand-written, flat",
        "torch DDP",
        "tf.distribute",
    }
    for name, lacks in figures["missing"].items():
        assert f"{name} does not take part: no {', '.join(lacks)}" in done.stderr
    assert figures["goals"][0]["what"] == "mlp: phalanx / hand-written, flat"
    assert "phalanx's speed / its" in done.stdout


def test_a_contender_that_dies_is_shown_with_its_last_words_and_the_others_end(turns, tmp_path):
    """One waits for its turn, one never starts."""
    waits = (
        "import json, socket, sys; host, port = sys.argv[1].split(':')\n"
        "line = socket.create_connection((host, int(port))).makefile('rw')\n"
        "line.write(json.dumps({'worker': 0, 'versions': {}}) + chr(10)); line.flush()\n"
        "line.readline()"
    )
    with pytest.raises(SystemExit, match="broken did not start") as raised, turns.Stage(tmp_path) as stage:
        waiting = stage.add(
            turns.Start("waiting", [[sys.executable, "-c", waits, stage.address]], [os.environ], 1)
        )
        stage.add(
            turns.Start("broken", [[sys.executable, "-c", "raise SystemExit('no paper')"]], [os.environ], 1)
        )
    assert "no paper" in str(raised.value)
    assert [process.returncode for process in waiting.processes] == [0]
