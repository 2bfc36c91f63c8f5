"""Several workers: a run that loses a worker, or is told to go, ends as the one that nobody disturbed."""

import os
import re
import signal

import numpy as np
import pytest

from tests.fleet.launching import finish, launches
from tests.fleet.workers import ROOT, START, run

# The undisturbed run comes first, in the same processes; then the same one, backed up and disturbed.
JOB = (
    START
    + """
from phalanx.checkpoint import model as whole
strategy = cluster()
chief, index = strategy.is_chief, strategy.worker_index
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([
        keras.Input((8,)), keras.layers.Dense(4, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
model.fit(X, Y, batch_size=16, verbose=0)
begin = whole.copies(model)

class Disturb(keras.callbacks.Callback):
    def __init__(self, *faults):
        super().__init__()
        self.faults, self.epoch = faults, None
    def maybe(self, *now):
        for number, (worker, place, signum) in enumerate(self.faults):
            if worker == index and place == (self.epoch, *now) and not os.path.exists(f"fault{number}"):
                open(f"fault{number}", "w").close()
                os.kill(os.getpid(), signum)
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        self.maybe("train", batch)
    def on_test_batch_end(self, batch, logs=None):
        self.maybe("test", batch)

def train(*callbacks):
    whole.put(model, {name: value.copy() for name, value in begin.items()})
    keras.utils.set_random_seed(3)
    history = model.fit(X, Y, batch_size=16, epochs=3, verbose=0, validation_data=(X[:20], Y[:20]), callbacks=list(callbacks))
    every = [*model.variables, *model.optimizer.variables]
    return [history.epoch, history.history, [np.array(v).tolist() for v in every]]

wanted = train()
found = train(phalanx.callbacks.BackupAndRestore("backups", save_freq=2), Disturb(*FAULTS))
assert found == wanted, f"worker {index} has {found[:2]} instead of {wanted[:2]}"
print(f"worker {index} is equal", flush=True)
"""
)


@pytest.fixture
def launch(tmp_path):
    yield from launches(tmp_path)


MODULE = ("-W", "ignore", "-m", "phalanx", "run")
ONE_REPLICA = {"JAX_NUM_CPU_DEVICES": "1", "KERAS_BACKEND": "jax"}


def test_workers_that_are_killed_or_told_to_go_end_with_the_same_weights(launch, tmp_path):
    """Reports, rows 36, 38 and 42: SIGTERM comes in the middle of an epoch and during validation."""
    faults = [
        (1, (0, "train", 3), "SIGKILL"),
        (1, (1, "train", 2), "SIGTERM"),
        (1, (1, "test", 0), "SIGTERM"),
    ]
    text = ", ".join(f"({worker}, {place!r}, signal.{name})" for worker, place, name in faults)
    options = ("--workers", "2", "--max-restarts", "1")
    launcher = launch(JOB.replace("FAULTS", f"({text})"), *options, python=MODULE, variables=ONE_REPLICA)
    code, out, err = finish(launcher, 250)
    assert code == 0, f"{out}\n{err}"
    assert out.count("is equal") == 2
    assert err.count("training goes on from backup-") == 3
    assert err.count("restart 1 of 1") == 1, "a notice is no failure"
    assert err.count("SIGTERM on worker 1: ") == err.count("leaving with code 75") == 2
    assert not (tmp_path / "backups").exists()


def test_the_example_goes_on_after_a_kill_as_its_first_lines_say(launch, tmp_path):
    script = str(ROOT / "examples" / "never_lose_work.py")
    options = ("--epochs", "40", "--rows", "800", "--backups", str(tmp_path / "backups"))
    python = (*MODULE, "--workers", "2", "--max-restarts", "3", script, *options)
    launcher = launch(
        "", python=("-c", f"import sys; from phalanx.cli.main import main; sys.exit(main({python[4:]}))")
    )
    number, lines = None, iter(launcher.stdout.readline, b"")
    for line in lines:
        found = re.search(rb"worker 1 is process (\d+)", line)
        number = int(found[1]) if found else number
        if b"Epoch 4/40" in line and list((tmp_path / "backups").glob("backup-*")):
            break
    os.kill(number, signal.SIGKILL)
    code, out, err = finish(launcher, 150)
    assert code == 0, err
    assert "restart 1 of 3" in err and "training goes on from backup-" in err
    assert re.search(r"Final loss 0\.\d+ after 40 epochs", out)


FOLDERS = """
strategy = cluster()
chief, index = strategy.is_chief, strategy.worker_index
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
steps, texts = [], []
class Count(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        steps.append(batch)
class Wall(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and chief:
            os.rename("broken", "away")
            open("broken", "w").close()
def fit(folder, *more, **options):
    options = {"epochs": 2} | options
    backup = phalanx.callbacks.BackupAndRestore(folder, delete_on_success=False)
    try:
        model.fit(X, Y, batch_size=16, verbose=0, callbacks=[backup, Count(), *more], **options)
    except phalanx.errors.CheckpointError as error:
        texts.append(str(error))
fit(f"mine{index}")
assert not steps
fit("shared", keras.callbacks.ModelCheckpoint("e{epoch}.keras"))
saved = keras.models.load_model("e2.keras").get_weights() if chief else []
keras.models.load_model("e1.keras")
live = model.get_weights()
model.fit(X, Y, batch_size=16, verbose=0, shuffle=False, initial_epoch=2, epochs=3)
third = model.get_weights()
fit("broken", Wall(), epochs=2000)
print("result", json.dumps([texts, len(steps), [[w.tolist() for w in each] for each in (saved, live, third)]]))
"""


ONE = """
fit("shared", epochs=3, shuffle=False)
assert len(steps) == 5
print("result", json.dumps([w.ravel().tolist() for w in model.get_weights()]))
"""


def test_folders_that_are_not_shared_that_are_and_that_break(tmp_path):
    """Reports, rows 9 and 53; and row 40: one worker goes on where two were."""
    found = run(FOLDERS, tmp_path)
    (texts, steps, (saved, live, third)), (other, other_steps, _) = found[0][0], found[1][0]
    assert saved == live
    for each in (texts, other):
        assert len(each) == 2
        assert "directory not shared: worker 1 does not see the token file" in each[0]
        assert str(tmp_path / "broken") in each[1] and ("NotADirectory" in each[1] or "FileExists" in each[1])
    assert steps == other_steps < 5000
    left = sorted(path.name for path in tmp_path.iterdir() if path.name != "script.py")
    assert left == ["away", "broken", "e1.keras", "e2.keras", "mine0", "shared"]
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["backup-00000001", "backup-00000002"]
    alone = run(FOLDERS.partition('fit(f"mine')[0] + ONE, tmp_path, count=1)[0][0]
    assert alone == [pytest.approx(np.ravel(each).tolist(), abs=1e-5) for each in third]
