"""Workers that are killed, stopped, terminated and robbed of their disk end with the undisturbed run's numbers."""

import json

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
backup = phalanx.callbacks.BackupAndRestore("backups/here", save_freq=4, delete_on_success=False)
history = model.fit(x, x[:, :1], batch_size=16, epochs=5, verbose=0, callbacks=[backup, phalanx.testing.chaos.Chaos()])
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
    folder.mkdir(exist_ok=True)
    backups = str(folder / "backups" / "here")
    script = Script(faults, str(folder / "notes"), backups).to_json()
    for launch in launches(folder):
        launcher = launch(JOB, python=("-c", SUPERVISE), variables={"PHALANX_CHAOS": script})
        code, _, err = finish(launcher, 280)
    assert code == 0, err
    notes = sorted((folder / "notes").glob("fault-*"))
    with np.load(folder / "end.npz") as end:
        return dict(end), [json.loads(note.read_text())["what"] for note in notes], err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("undisturbed"))[0]


def assert_same(end, undisturbed):
    assert end.keys() == undisturbed.keys() and len(end) > 10
    for name, value in undisturbed.items():
        assert np.array_equal(end[name], value), name


def test_faults_of_workers(undisturbed, tmp_path):
    faults = [
        Fault(1, 3, "kill"),  # before there is a backup
        Fault(0, 6, "kill saving"),
        Fault(1, 11, "terminate"),
        Fault(0, 12, "kill restoring"),
        Fault(0, 14, "flip"),
        Fault(1, 21, "stop"),
    ]
    end, happened, err = run(tmp_path, *faults)
    assert happened == [each.what for each in faults], err
    assert_same(end, undisturbed)
    assert "left with code 75, which means preempted: restart, not counted" in err
    assert "PhalanxWarning" in err and "has other bytes than were written" in err
