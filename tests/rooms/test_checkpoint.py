"""Backups of a model: whole or not at all, on any number of replicas, and of the same model only."""

import json
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import phalanx
from phalanx.checkpoint import folder, inspect, latest, restore, save
from phalanx.checkpoint.manifest import checksum
from phalanx.host import store

X = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
Y = np.sin(X[:, :1])


def made(replicas=2, width=4, optimizer=None, frozen=False):
    keras.utils.set_random_seed(0)
    names = [f"cpu:{i}" for i in range(replicas)]
    with phalanx.MirroredStrategy(names).scope():
        layers = [keras.layers.Dense(width, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        layers[0].trainable = not frozen
        model.compile(
            optimizer or keras.optimizers.Adam(0.01, gradient_accumulation_steps=2), "mse", metrics=["mae"]
        )
    model.optimizer.build(model.trainable_variables)
    return model


def trained(model, epochs=1):
    return model.fit(X, Y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)


def values(model):
    every = [*model.variables, *model.optimizer.variables]
    return [np.array(each) for each in every]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b))


def test_a_restored_model_trains_on_to_the_bit(tmp_path):
    """Half of a gradient accumulation, dropout's seeds and Adam's slots included (3 steps, 2 a update)."""
    straight = made()
    trained(straight)
    path = save(straight, tmp_path)
    trained(straight)
    again = made()
    assert restore(again, tmp_path) == path
    trained(again)
    assert same(values(again), values(straight))


@pytest.mark.parametrize("replicas", [1, 3, 4])
def test_every_value_comes_back_to_the_bit_on_any_number_of_replicas(two, replicas):
    """Reports, row 40."""
    place, first = two
    model = made(replicas)
    trained(model)
    restore(model, place / "backup-00000001")
    assert same(values(model), first)


def test_another_number_of_replicas_trains_on_from_it(tmp_path):
    """Reports, row 40: 4 replicas, then 2, then 3, against one device."""
    alone = made(1)
    trained(alone, 3)
    for number, replicas in enumerate((4, 2, 3)):
        model = made(replicas)
        if number:
            restore(model, tmp_path)
        trained(model)
        save(model, tmp_path)
    assert int(model.optimizer.iterations) == int(alone.optimizer.iterations)
    for a, b in zip(values(alone), values(model)):
        assert np.abs(a.astype("float64") - b).max(initial=0) <= 1e-5


@pytest.fixture
def two(tmp_path):
    """A folder with two backups, and the values of each."""
    model = made()
    save(model, tmp_path)
    first = values(model)
    trained(model)
    save(model, tmp_path)
    return tmp_path, first


def largest(path):
    return max(
        (each for each in path.rglob("*") if each.is_file() and each.name != "manifest.json"),
        key=lambda each: each.stat().st_size,
    )


def cut(path):
    largest(path).write_bytes(largest(path).read_bytes()[:40])


def flip(path):
    file = largest(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def flip_manifest(path):
    """One digit that is a digit still: no form tells it from a good one."""
    file = path / "manifest.json"
    text = file.read_text()
    at = text.index('"updates": ') + len('"updates": ')
    file.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])


def lose(path):
    largest(path).unlink()


def empty(path):
    largest(path).write_bytes(b"")


def more(path):
    (path / "more").write_bytes(b"x")


def empty_manifest(path):
    (path / "manifest.json").write_bytes(b"")


def without_manifest(path):
    (path / "manifest.json").unlink()


def without_arrays(path):
    store.remove(str(path / "arrays"))


@pytest.mark.parametrize(
    "harm", [cut, flip, flip_manifest, lose, empty, more, empty_manifest, without_manifest, without_arrays]
)
def test_a_damaged_newest_backup_is_named_and_the_one_before_is_used(two, harm):
    """Reports, row 39."""
    place, first = two
    harm(place / "backup-00000002")
    model = made()
    trained(model)
    with pytest.warns(phalanx.PhalanxWarning, match="backup-00000002") as caught:
        taken = restore(model, place)
    assert len(caught) == 1 and taken.endswith("backup-00000001")
    assert same(values(model), first)
    harm(place / "backup-00000001")
    before = values(model)
    with pytest.raises(phalanx.CheckpointError, match="never quietly from zero"):
        restore(model, place)
    assert same(values(model), before)


def test_no_backup_is_an_error_and_an_unfinished_one_never_counts(tmp_path):
    model = made()
    with pytest.raises(phalanx.CheckpointError, match="no backup in it"):
        restore(model, tmp_path)
    saved = Path(save(model, tmp_path))
    saved.rename(tmp_path / "unfinished-backup-00000001-77")
    assert latest(tmp_path) is None
    with pytest.raises(phalanx.CheckpointError, match="never committed"):
        restore(model, tmp_path)


def test_a_changed_model_is_told_line_by_line_and_nothing_is_loaded(two, monkeypatch):
    place, _ = two
    monkeypatch.setattr("phalanx.checkpoint.arrays.read", lambda *_: pytest.fail("an array was read"))
    for model, words in (
        (made(width=5), ["saved 6x4 float32, the model wants 6x5 float32"]),
        (made(optimizer=keras.optimizers.SGD(0.1)), ["the optimizer is SGD, the backup's was Adam"]),
        (made(frozen=True), ["saved as trainable, non_trainable in the model"]),
    ):
        trained(model)
        before = values(model)
        with pytest.raises(phalanx.CheckpointError) as caught:
            restore(model, place)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert same(values(model), before)


def rewrite(backup, change):
    """Change what a manifest says, as somebody does who knows its form."""
    path = backup / "manifest.json"
    found = json.loads(path.read_text())
    del found["checksum"]
    change(found)
    path.write_text(json.dumps(found | {"checksum": checksum(found)}))


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "arrays/../../x", "a\\b", ""])
def test_a_backup_stays_inside_its_folder(two, path):
    backup = two[0] / "backup-00000002"
    rewrite(backup, lambda found: found["files"].update({path: [0, "0" * 64]}))
    for use in (inspect, lambda place: restore(made(), place)):
        with pytest.raises(phalanx.CheckpointError, match="inside its folder"):
            use(backup)


def test_a_size_that_lies_is_refused_before_any_memory_is_taken(two):
    backup = two[0] / "backup-00000002"
    rewrite(backup, lambda found: found["arrays"][0].__setitem__(2, [2**40, 2**40]))
    with pytest.raises(phalanx.CheckpointError, match="1099511627776x1099511627776 float32, the model wants"):
        restore(made(), backup)


def test_a_manifest_that_disagrees_with_its_arrays_is_refused(two):
    backup = two[0] / "backup-00000002"
    rewrite(backup, lambda found: found["arrays"][0].__setitem__(4, 1))
    with pytest.raises(phalanx.CheckpointError, match="other bytes than were saved"):
        restore(made(), backup)


def test_a_link_is_refused(two):
    place = two[0]
    backup = place / "backup-00000002"
    file = largest(backup)
    file.rename(place / "moved")
    file.symlink_to(place / "moved")
    with pytest.raises(phalanx.CheckpointError, match="is a link"):
        restore(made(), backup)


def test_a_refused_write_names_path_and_cause_and_leaves_the_last_backup(two, monkeypatch):
    """Reports, row 53, one machine."""
    place, _ = two

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phalanx.checkpoint.arrays.write", full)
    with pytest.raises(phalanx.CheckpointError, match="No space left on device") as caught:
        save(made(), place)
    assert str(place) in str(caught.value)
    assert latest(place).endswith("backup-00000002")
    assert not [name for name in store.folders(str(place)) if name.startswith(folder.TEMPORARY)]


def test_a_folder_that_is_a_file_is_named(tmp_path):
    wall = tmp_path / "file"
    wall.write_bytes(b"")
    with pytest.raises(phalanx.CheckpointError, match=f"{wall}: NotADirectoryError|{wall}: FileExistsError"):
        save(made(), wall)
    assert latest(tmp_path / "nowhere") is None


def test_what_inspect_shows_and_no_pickle(two):
    place, _ = two
    backup = inspect(place)
    assert backup.updates == 1 and "sequential" in str(backup) and "6x4 float32" in str(backup)
    assert {each.part for each in backup.manifest.entries} == {
        "trainable",
        "non_trainable",
        "optimizer",
        "metrics",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert restore(made(), backup.path) == backup.path
