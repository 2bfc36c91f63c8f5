"""Disasters: the run that they hit ends with the numbers of the run that nothing disturbed."""

import contextlib
import json
import subprocess

import numpy as np
import pytest

from phalanx.testing.faults import Fault, Script
from tests.fleet.launching import finish, launches

JOB = """
import numpy as np
import phalanx, keras
strategy = phalanx.MultiWorkerMirroredStrategy(connect_timeout=60, peer_timeout=5)
keras.utils.set_random_seed(0)
with strategy.scope():
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
x = np.random.default_rng(0).normal(size=(90, 6)).astype("float32")
backup = phalanx.callbacks.BackupAndRestore("backups/here", save_freq=8, delete_on_success=False)
history = model.fit(x, x[:, :1], batch_size=16, epochs=25, verbose=0, callbacks=[backup, phalanx.testing.chaos.Chaos()])
if strategy.is_chief:
    every = [np.array(each) for each in [*model.variables, *model.optimizer.variables]]
    np.savez("end.npz", *every, **{f"history_{name}": values for name, values in history.history.items()})
"""
SUPERVISE = """
import sys
from phalanx.host import accelerators, env
from phalanx.launch.plan import plan_workers
from phalanx.launch.supervise import Settings, supervise
from phalanx.restart import Policy
settings = Settings(grace=3, policy=Policy(max_restarts=20, backoff=0.1, short=0))
plan = plan_workers(2, 1, env.snapshot(), accelerators.Accelerators(), 2)
sys.exit(supervise(["job.py"], plan, env.snapshot(), settings))
"""


def run(folder, *faults):
    """Run the job under faults; its end, the faults that happened, and what the launcher said."""
    script = Script(faults, str(folder / "notes"), str(folder / "backups" / "here")).to_json()
    for launch in launches(folder):
        launcher = launch(JOB, python=("-c", SUPERVISE), variables={"PHALANX_CHAOS": script})
        code, _, err = finish(launcher, 500)
    assert code == 0, err
    notes = sorted((folder / "notes").glob("fault-*"))
    with np.load(folder / "end.npz") as end:
        return dict(end), [json.loads(note.read_text())["what"] for note in notes], err


@contextlib.contextmanager
def small_disk(place):
    """A disk of its own that can be filled, where this user may mount one; True if so."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(place)]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.timeout(900)
def test_workers_that_are_killed_terminated_and_robbed_of_their_disk_end_as_if_nothing_had_happened(tmp_path):
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
    undisturbed, none, _ = run(tmp_path / "undisturbed")
    assert not none and len(undisturbed) > 10
    with small_disk(tmp_path / "disturbed" / "backups" / "here") as mounted:
        faults = [
            Fault(0, 5, "kill saving"),  # before there is a backup
            Fault(1, 60, "terminate"),
            Fault(0, 90, "flip"),
            *([Fault(0, 115, "full")] if mounted else []),
        ]
        end, happened, err = run(tmp_path / "disturbed", *faults)
    assert happened == [each.what for each in faults], err
    assert end.keys() == undisturbed.keys()
    for name, value in undisturbed.items():
        assert np.array_equal(end[name], value), name
    assert "phalanx: worker 0 was ended by SIGKILL (code 137): restart 1 of 20" in err
    assert "left with code 75, which means preempted: restart, not counted" in err
    assert "has other bytes than were written" in err, "the damaged backup is named"
    if mounted:
        assert "No space left on device" in err and "left with code 1: restart 3 of 20" in err
