"""Backups beside the training: what `save` waits for, what an error leaves behind, what is pruned."""

import contextlib
import os
import subprocess
import threading

import keras
import numpy as np
import pytest

from phalanx.checkpoint import folder, latest, model
from phalanx.checkpoint.writer import Snapshot, Writer
from phalanx.errors import CheckpointError, SettingError


def snapshot(number=0, size=1000):
    value = np.random.default_rng(number).random(size, "float32")  # numbers that no storage makes smaller
    return Snapshot({"trainable.0": "net/kernel"}, {"trainable.0": value}, {"updates": number}, {})


def updates(place):
    """What each complete backup of a folder holds, oldest first; the arrays are read, too."""
    found = []
    for row in folder.rows(place):
        if row.problem is None:
            (value,) = model.storage.read(f"{row.backup.path}/arrays", row.backup.manifest.entries).values()
            assert (value == snapshot(row.backup.updates).values["trainable.0"]).all()
            assert folder.problem(row.backup) is None
            found.append(row.backup.updates)
    return found


@pytest.fixture
def gate(monkeypatch):
    """Writing stops before the arrays until the test sets it."""
    opened, reached = threading.Event(), threading.Event()
    write = model.storage.write

    def slow(*arguments):
        reached.set()
        assert opened.wait(60)
        write(*arguments)

    monkeypatch.setattr(model.storage, "write", slow)
    opened.reached = reached
    yield opened
    opened.set()


def test_save_returns_before_the_backup_is_written_and_the_next_one_waits_for_it(gate, tmp_path):
    with Writer(str(tmp_path), keep=2) as writer:
        writer.save(snapshot(1))
        assert gate.reached.wait(60) and latest(tmp_path) is None and writer.newest is None
        threading.Timer(0, gate.set).start()
        writer.wait()
        assert writer.newest == latest(tmp_path) is not None
        writer.save(snapshot(2))
        assert writer.blocked > 0
        assert latest(tmp_path) is not None, "the first is complete"
    assert updates(tmp_path) == [1, 2]
    assert writer.newest == latest(tmp_path) and writer.cost > 0
    assert not [each for each in threading.enumerate() if each.name == "phalanx-backup"]


def test_older_backups_go_after_the_newer_is_complete(tmp_path, monkeypatch):
    there = []
    commit = model.store.commit

    def watched(before, after):
        if "unfinished-" in before:  # otherwise an older one loses its name
            there.append(updates(tmp_path))
        commit(before, after)

    monkeypatch.setattr(model.store, "commit", watched)
    with Writer(str(tmp_path), keep=2) as writer:
        for number in range(1, 5):
            writer.save(snapshot(number))
    assert there == [[], [1], [1, 2], [2, 3]] and updates(tmp_path) == [3, 4]


def test_what_a_killed_run_left_unfinished_goes_and_a_damaged_one_stays_to_be_seen(tmp_path):
    with Writer(str(tmp_path), keep=1) as writer:
        writer.save(snapshot(1))
    os.makedirs(tmp_path / "unfinished-backup-00000002-77" / "arrays")
    with Writer(str(tmp_path), keep=2) as writer:
        writer.save(snapshot(2))
        writer.drain()
        (tmp_path / "backup-00000002" / "manifest.json").write_bytes(b"")
        writer.save(snapshot(3))
    assert sorted(os.listdir(tmp_path)) == [f"backup-0000000{number}" for number in (1, 2, 3)]
    assert updates(tmp_path) == [1, 3]


def refuse(path):
    """A folder in which nothing can be made, also for root: its place is taken by a file."""
    path.rename(f"{path}.away")
    path.write_bytes(b"")


def test_a_failed_write_is_raised_once_with_path_and_cause_and_the_next_save_works(tmp_path):
    place = tmp_path / "backups"
    writer = Writer(str(place), keep=1)
    writer.save(snapshot(1))
    writer.drain()
    refuse(place)
    writer.save(snapshot(2))
    with pytest.raises(CheckpointError, match="the last good one stays") as error:
        writer.drain()
    assert str(place) in str(error.value) and isinstance(error.value.__cause__, OSError)
    writer.check()
    place.unlink()
    os.rename(f"{place}.away", place)
    assert updates(place) == [1]
    writer.save(snapshot(3))
    writer.drain()
    assert updates(place) == [3]


def test_the_next_save_raises_what_the_last_one_met(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    writer = Writer(str(tmp_path / "file"), keep=1)
    writer.save(snapshot(1))
    with pytest.raises(CheckpointError, match=r"FileExistsError|NotADirectoryError"):
        writer.save(snapshot(2))
    writer.drain()


def test_a_folder_removed_between_two_saves_is_made_anew_and_within_one_is_named(tmp_path, monkeypatch):
    place = tmp_path / "backups"
    writer = Writer(str(place), keep=2)
    write = model.storage.write
    with monkeypatch.context() as patched:
        patched.setattr(
            model.storage, "write", lambda *given: [write(*given), model.store.remove(str(place))]
        )
        writer.save(snapshot(1))
        with pytest.raises(CheckpointError, match=f"{place}: FileNotFoundError"):
            writer.drain()
    writer.save(snapshot(2))
    writer.drain()
    assert updates(place) == [2]


@contextlib.contextmanager
def mounted(place, *options):
    """A file system of its own, where this user may mount one."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "none", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip(f"no mount: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        # lazily: the storage closes its files in threads of its own
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_named_and_the_last_good_backup_stays(tmp_path):
    place = tmp_path / "small"
    with mounted(place, "-o", "size=2m"):
        writer = Writer(str(place), keep=2)
        writer.save(snapshot(1))
        writer.drain()
        writer.save(snapshot(2, size=1_000_000))
        with pytest.raises(CheckpointError, match=r"(?i)no space left|28"):
            writer.drain()
        assert updates(place) == [1]
        assert os.listdir(place) == ["backup-00000001"], "what was half written gives its room back"
        writer.save(snapshot(3))
        writer.drain()
        assert updates(place) == [1, 3]


def test_a_folder_made_read_only_is_named_and_its_backups_stay(tmp_path):
    """Reports, row 53."""
    place = tmp_path / "fixed"
    with mounted(place):
        writer = Writer(str(place), keep=2)
        writer.save(snapshot(1))
        writer.drain()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        writer.save(snapshot(2))
        with pytest.raises(CheckpointError, match="(?i)read-only"):
            writer.drain()
        assert updates(place) == [1]


def test_a_disk_that_never_answers_has_a_deadline_and_keeps_no_process(gate, tmp_path):
    writer = Writer(str(tmp_path), keep=1)
    writer.save(snapshot(1))
    assert gate.reached.wait(60)
    with pytest.raises(CheckpointError, match=r"still being written after 0\.01 s"):
        writer.drain(0.01)
    assert all(each.daemon for each in threading.enumerate() if each.name == "phalanx-backup")
    gate.set()
    writer.drain()
    assert updates(tmp_path) == [1]


def test_an_error_of_the_training_is_not_hidden_by_one_of_its_last_backup(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ZeroDivisionError) as error, Writer(str(tmp_path / "file"), keep=1) as writer:
        writer.save(snapshot(1))
        1 / 0  # noqa: B018
    assert "the last good one stays" in error.value.__notes__[0]


def test_a_snapshot_that_cannot_be_written_as_plain_values_is_an_error_too(tmp_path):
    writer = Writer(str(tmp_path), keep=1)
    writer.save(Snapshot({}, {}, {"state": object()}, {}))
    with pytest.raises(CheckpointError, match="TypeError.*object"):
        writer.drain()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "2"])
def test_at_least_one_backup_stays(keep, tmp_path):
    with pytest.raises(SettingError, match="At least one backup stays"):
        Writer(str(tmp_path), keep)


def test_a_model_is_restored_from_a_snapshot_taken_while_it_trained_on(tmp_path):
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    net.compile("sgd", "mse")
    paths, values = model.paths(net), model.copies(net)
    with Writer(str(tmp_path), keep=1) as writer:
        writer.save(Snapshot(paths, values, {"updates": 0}, model.about(net)))
        net.set_weights([each + 1 for each in net.get_weights()])
    model.restore(net, tmp_path)
    assert (np.array(net.weights[0]) == values["trainable.0"]).all()
