"""What a run goes on from: other replicas, damaged backups, changed models, hostile ones."""

import shutil
import signal

import keras
import numpy as np
import pytest

import phalanx
from phalanx.callbacks import BackupAndRestore
from phalanx.errors import CheckpointError, DataError, PhalanxWarning, ScopeError, SettingError
from tests.rooms.resuming import Stop, StopAt, X, Y, arrays, everything, fresh, run, usual
from tests.rooms.test_checkpoint import rewrite


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was stopped in its second epoch, with two backups; to be copied."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Stop):
        fit(fresh(usual), folder, StopAt(1, 3))
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "backups")
    return tmp_path / "backups"


def fit(model, folder, *callbacks, **options):
    options = {"epochs": 3, "save_freq": 3} | options
    backup = BackupAndRestore(folder, save_freq=options.pop("save_freq"))
    return model.fit(**(arrays() | options), verbose=0, callbacks=[backup, *callbacks])


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.astype("float64"), b, atol=1e-5, rtol=1e-5)


def plain():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def test_other_numbers_of_replicas_go_on_in_the_same_order(tmp_path):
    """Reports, row 40: 4 -> 2 -> 3 replicas, and one device that was not disturbed."""
    even = {"x": X[:40], "y": Y[:40]}
    alone = fresh(plain, 1)
    wanted = alone.fit(**even, batch_size=8, epochs=3, verbose=0).history
    for replicas, stop in ((4, StopAt(0, 3)), (2, StopAt(1, 3)), (3, None)):
        model = fresh(plain, replicas)
        try:
            history = fit(model, tmp_path / "backups", *([stop] if stop else []), **even)
        except Stop:
            continue
    close(everything(model), everything(alone))
    assert history.epoch == [0, 1, 2]
    for name, values in wanted.items():
        assert history.history[name] == pytest.approx(values, abs=1e-5)


def largest(backup):
    return max(
        (p for p in backup.rglob("*") if "arrays" in p.parts and p.is_file()), key=lambda p: p.stat().st_size
    )


@pytest.mark.parametrize("damage", ["cut", "empty", "manifest", "flipped"])
def test_a_damaged_newest_backup_is_named_and_the_one_before_used(folder, damage):
    """Reports, row 39."""
    newest = max(folder.glob("backup-*"))
    file = largest(newest)
    data = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        shutil.rmtree(newest / "arrays")
    model = fresh(usual)
    with pytest.warns(PhalanxWarning, match=f"{newest.name}: .*is taken instead") as caught:
        history = fit(model, folder)
    assert sum("whole is taken" in str(each.message) for each in caught) == 1
    values, epochs, told = run(arrays, folder, ())
    assert (history.epoch, history.history) == (epochs, told)
    for a, b in zip(everything(model), values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_a_good_backup_nothing_starts_from_zero(folder):
    for backup in folder.glob("backup-*"):
        largest(backup).write_bytes(b"")
    model = fresh(usual)
    before = everything(model)
    with pytest.raises(CheckpointError, match="never quietly from zero"):
        fit(model, folder)
    for a, b in zip(everything(model), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_changed_model_is_named_before_anything_is_loaded(folder):
    def wider():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
        return model

    model = fresh(wider)
    before = everything(model)
    with pytest.raises(CheckpointError, match="saved 6x4 float32, the model wants 6x5 float32"):
        fit(model, folder)
    for a, b in zip(everything(model), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_batch_size_within_an_epoch_is_refused(folder):
    with pytest.raises(DataError, match=r"3 batches in a pass \(6 when .* 16 rows of a batch \(8 when"):
        fit(fresh(usual), folder, batch_size=16)


def test_another_batch_size_between_two_epochs_takes_all_rows_of_the_next(tmp_path):
    with pytest.raises(Stop):
        fit(fresh(usual), tmp_path / "backups", StopAt(1, "end"), save_freq="epoch")
    model = fresh(usual)
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    fit(model, tmp_path / "backups", count, batch_size=4)
    assert steps == [*range(11)] * 2, "the epoch at whose end it stopped is begun anew, and the last one"


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": {"steps": 1}},
        {"data": {"hooks": 2**60}},
        {"data": {"reads": [-1]}},
        {"random": []},
        {"skips": [1]},
        {"phase": "nonsense"},
        {"callbacks": 3},
    ],
    ids=str,
)
def test_progress_that_no_fit_has_written_is_refused(folder, wrong):
    for backup in folder.glob("backup-*"):
        rewrite(backup, lambda found: found["progress"].update(wrong))
    model = fresh(usual)
    before = everything(model)
    with pytest.raises(CheckpointError, match="from a backup that fit wrote"):
        fit(model, folder)
    for a, b in zip(everything(model), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_states_of_a_size_that_no_callback_has_are_refused_before_memory_is_taken(folder):
    for backup in folder.glob("backup-*"):
        rewrite(backup, lambda found: found["arrays"].append(["states.99", "mine", [2**40], "float32", 0]))
    with pytest.raises(CheckpointError, match="size of the model"):
        fit(fresh(usual), folder)


def test_a_save_that_fails_ends_training_and_says_why(tmp_path):
    wall = tmp_path / "file"
    wall.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{wall}.*(FileExists|NotADirectory)"):
        fit(fresh(usual), wall)

    class Wall(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                (tmp_path / "backups").rmdir()  # nothing was written yet
                (tmp_path / "backups").write_bytes(b"")

    with pytest.raises(CheckpointError, match="the last good one stays"):
        fit(fresh(usual), tmp_path / "backups", Wall(), epochs=20, save_freq="epoch")


@pytest.fixture
def leaving():
    """A process that is told to go ignores SIGTERM until it has gone; this one stays."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, before)


def test_a_notice_of_the_users_own_saves_and_leaves_with_75(tmp_path, leaving):
    told = iter([None, None, "the spot market", None])
    backup = BackupAndRestore(tmp_path / "backups", on_preemption=lambda: next(told))
    with pytest.raises(SystemExit) as end:
        fresh(usual).fit(**arrays(), epochs=3, verbose=0, callbacks=[backup])
    assert end.value.code == 75
    assert phalanx.checkpoint.inspect(tmp_path / "backups").step == 3
    model = fresh(usual)
    history = fit(model, tmp_path / "backups")
    values, epochs, told = run(arrays, tmp_path, ())
    assert (history.epoch, history.history) == (epochs, told)


def test_sigterm_during_the_first_compilation_saves_the_first_step(tmp_path, leaving):
    """Reports, row 42: it comes before the first step, and is acted on after it."""

    class Terminate(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit, match="75"):
        fit(fresh(usual), tmp_path / "backups", Terminate())
    assert phalanx.checkpoint.inspect(tmp_path / "backups").updates == 1


def decaying():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 5, 0.8)), "mse")
    return model


class Noted(keras.utils.PyDataset):
    """Four batches that say when they are read."""

    def __init__(self):
        super().__init__()
        self.read = []

    def __len__(self):
        return 4

    def __getitem__(self, number):
        self.read.append(number)
        return X[8 * number : 8 * number + 8], Y[8 * number : 8 * number + 8]


def test_steps_epochs_and_rows_are_those_of_one_run(tmp_path):
    """Reports, rows 36 and 38, on 4 replicas: 24 steps of which none is done twice or left out."""
    straight = fresh(decaying, 4)
    wanted = straight.fit(x=Noted(), epochs=6, shuffle=True, verbose=0)
    with pytest.raises(Stop):
        fit(
            fresh(decaying, 4),
            tmp_path / "b",
            StopAt(2, 2),
            x=Noted(),
            y=None,
            batch_size=None,
            epochs=6,
            shuffle=True,
        )
    assert phalanx.checkpoint.inspect(tmp_path / "b").updates == 9
    model, data, begun = fresh(decaying, 4), Noted(), []
    seen = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    history = fit(model, tmp_path / "b", seen, x=data, y=None, batch_size=None, epochs=6, shuffle=True)
    assert begun == [2, 3, 4, 5]
    assert int(model.optimizer.iterations) == int(straight.optimizer.iterations) == 24 + 1  # one to warm up
    assert len(data.read) == 24 - 9
    assert all(sorted(data.read[n : n + 4]) == [0, 1, 2, 3] for n in (3, 7, 11))
    assert history.history == wanted.history
    for a, b in zip(everything(model), everything(straight), strict=True):
        np.testing.assert_array_equal(a, b)


def test_backups_that_stay_and_settings_that_cannot_be(tmp_path):
    backup = BackupAndRestore(tmp_path / "b", delete_on_success=False, keep=1)
    first = fresh(usual).fit(**arrays(), epochs=2, verbose=0, callbacks=[backup])
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["backup-00000002"]
    model = fresh(usual)
    again = model.fit(**arrays(), epochs=2, verbose=0, callbacks=[BackupAndRestore(tmp_path / "b")])
    assert again.history == first.history and int(model.optimizer.iterations) > 0
    assert not (tmp_path / "b").exists()
    for wrong in ({"save_freq": 0}, {"save_freq": "hour"}, {"on_preemption": "yes"}):
        with pytest.raises(SettingError):
            BackupAndRestore(tmp_path, **wrong)
    with pytest.raises(SettingError):
        BackupAndRestore("")
    with pytest.raises(SettingError, match="One fit has one folder"):
        fit(fresh(usual), tmp_path, BackupAndRestore(tmp_path))


def test_a_model_without_a_strategy_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ScopeError, match="outside a scope"):
        model.fit(X, Y, verbose=0, callbacks=[BackupAndRestore(tmp_path)])
