"""A worker that dies, stands still or is cut off is named by the others, who end instead of waiting."""

import signal
import time

import pytest

from tests.fleet.hosts import listening
from tests.fleet.workers import Fleet, run

ENDLESS = """
strategy = cluster(peer_timeout=5)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2000:  # later than the last news of the start
            print("training", flush=True)
model.fit(np.tile(X, (2000, 1)), np.tile(Y, (2000, 1)), batch_size=7, epochs=1000, verbose=0, callbacks=[Tell()])
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_worker_that_dies_or_stands_still_is_named_with_its_place(how, tmp_path):
    """Reports, row 15: named within the peer timeout, and nobody hangs."""
    with Fleet(ENDLESS, tmp_path) as fleet:
        assert fleet.line(0) == fleet.line(1) == "training"
        for worker in fleet.running.values():  # local workers: nobody outside gets in
            assert listening(worker.pid) == {"127.0.0.1"}
        fleet.kill(1, getattr(signal, how))
        since = time.monotonic()
        out, err = fleet.running[0].communicate(timeout=60)
        passed = time.monotonic() - since
        assert fleet.running[0].returncode == 76, err
    assert "worker 1" in err
    assert "of epoch 1" in err
    if how == "SIGKILL":  # the collective breaks, and Python learns of it
        assert "WorkerLost" in err and "its process has ended" in err
    else:  # the collective waits on: the process is ended from outside, with the reason
        assert "silent for 5 s" in err and "could not stop by itself" in err
    assert passed < 45


def test_a_worker_that_loses_its_chief_does_not_hang(tmp_path):
    with Fleet(ENDLESS, tmp_path) as fleet:
        assert fleet.line(0) == fleet.line(1) == "training"
        fleet.kill(0)
        out, err = fleet.running[1].communicate(timeout=60)
        assert fleet.running[1].returncode not in (0, None)
    assert "worker 0" in err or "coordination service" in err.lower()


def test_an_error_on_one_worker_ends_the_others_with_its_name(tmp_path):
    script = ENDLESS.replace('print("training", flush=True)', 'assert strategy.is_chief, "mine alone"')
    with Fleet(script, tmp_path) as fleet:
        ended = fleet.wait(90)
    assert ended[1].code == 1 and "mine alone" in ended[1].err
    assert ended[0].code == 76 and "worker 1 closed its connection" in ended[0].err


def test_a_worker_that_is_done_early_waits_for_the_others(tmp_path):
    """Reports, row 15 (c): both end well."""
    script = """
strategy = cluster(peer_timeout=5)
if strategy.is_chief:
    time.sleep(8)
print("result", strategy.worker_index)
"""
    found = run(script, tmp_path)
    assert found == {0: [0], 1: [1]}
