"""A model goes into a backup and comes back whole, on any number of replicas, or not at all."""

import json
import os
import pathlib

import keras
import numpy as np
import pytest

import phalanx
from phalanx.errors import CheckpointError, PhalanxWarning

X = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def strategy(replicas):
    return phalanx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])


def build(on, width=6, optimizer="adam"):
    keras.utils.set_random_seed(1)
    with on.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(width, activation="relu", name="hidden"),
                keras.layers.Dropout(0.3, seed=4),
                keras.layers.BatchNormalization(name="norm"),
                keras.layers.Dense(1, name="out"),
            ],
            name="net",
        )
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def train(model, x=X, y=Y):
    model.fit(x, y, batch_size=12, shuffle=False, verbose=0)
    return model


def values(model):
    every = [*model.variables, *model.optimizer.variables]
    return [np.array(each.value) for each in every]


def apart(model, other):
    return max(np.abs(a - b).max(initial=0) for a, b in zip(values(model), values(other), strict=True))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model that has been trained, and the folder of its one backup, to be copied."""
    folder = tmp_path_factory.mktemp("saved")
    model = train(build(strategy(2)))
    phalanx.checkpoint.save(model, folder)
    return model, folder


@pytest.fixture
def folder(saved, tmp_path):
    import shutil

    return pathlib.Path(shutil.copytree(saved[1], tmp_path / "backups"))


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_every_variable_comes_back_to_the_bit_on_any_number_of_replicas(saved, replicas):
    """Reports, row 40."""
    model, folder = saved
    other = train(build(strategy(replicas)), X[:12] * 2, Y[:12])
    phalanx.checkpoint.restore(other, folder)
    assert apart(other, model) == 0
    assert int(other.optimizer.iterations) == 4


def test_training_goes_on_as_if_nothing_had_happened(tmp_path):
    """Reports, row 40: 4 replicas, then 2, then 3, equal to a run on one device."""
    model = train(train(train(build(strategy(1)))))
    first = train(build(strategy(4)))
    for replicas in (2, 3):
        phalanx.checkpoint.save(first, tmp_path)
        first = build(strategy(replicas))
        phalanx.checkpoint.restore(first, tmp_path)
        train(first)
    assert int(first.optimizer.iterations) == 12
    assert apart(first, model) < 1e-5


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "missing", "no manifest", "more"])
def test_a_damaged_newest_backup_is_named_and_the_one_before_is_used(saved, folder, damage):
    """Reports, row 39."""
    model, _ = saved
    newest = pathlib.Path(phalanx.checkpoint.save(train(build(strategy(1))), folder))
    largest = max(
        (p for p in newest.rglob("*") if p.is_file() and p.name != "manifest.json"),
        key=lambda p: p.stat().st_size,
    )
    data = largest.read_bytes()
    if damage == "missing":
        largest.unlink()
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    elif damage == "more":
        (newest / "more").write_bytes(b"x")
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        largest.write_bytes({"cut": data[:middle], "empty": b"", "flipped": flipped}[damage])
    other = build(strategy(2))
    with pytest.warns(PhalanxWarning, match=newest.name):
        used = phalanx.checkpoint.restore(other, folder)
    assert used.endswith("backup-00000001")
    assert apart(other, model) == 0


def test_without_a_whole_backup_there_is_an_error_and_nothing_is_loaded(folder, tmp_path):
    """Reports, row 39."""
    (folder / "backup-00000001" / "manifest.json").write_bytes(b"")
    other = build(strategy(2))
    before = values(other)
    with pytest.raises(CheckpointError, match="never quietly from zero"):
        phalanx.checkpoint.restore(other, folder)
    with pytest.raises(CheckpointError, match="no backup in it"):
        phalanx.checkpoint.restore(other, tmp_path / "nowhere")
    assert all((a == b).all() for a, b in zip(before, values(other), strict=True))


@pytest.mark.parametrize(
    "change, texts",
    [
        ({"width": 7}, ["hidden/kernel", "8x6 float32", "wants 8x7 float32", "out/kernel"]),
        ({"optimizer": "sgd"}, ["the optimizer is SGD, the backup's was Adam"]),
    ],
)
def test_a_changed_model_is_told_by_name_and_nothing_is_half_loaded(folder, change, texts):
    other = train(build(strategy(2), **change))
    before = values(other)
    with pytest.raises(CheckpointError) as error:
        phalanx.checkpoint.restore(other, folder)
    for text in texts:
        assert text in str(error.value)
    assert all((a == b).all() for a, b in zip(before, values(other), strict=True))


def rewrite(folder, change):
    path = folder / "backup-00000001" / "manifest.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "arrays/../../outside", "a\\..\\b"])
def test_a_backup_that_leaves_its_folder_is_refused(folder, name):
    rewrite(folder, lambda found: found["files"].update({name: [1, "0" * 64]}))
    with pytest.raises(CheckpointError, match="stays inside its folder"):
        phalanx.checkpoint.inspect(folder / "backup-00000001")
    with pytest.raises(CheckpointError, match="outside|passwd|b"):
        phalanx.checkpoint.restore(build(strategy(1)), folder)


def test_a_link_in_a_backup_is_refused(folder):
    largest = max(
        (p for p in folder.rglob("*") if p.is_file() and "arrays" in p.parts), key=lambda p: p.stat().st_size
    )
    away = folder.parent / "away"
    os.rename(largest, away)
    os.symlink(away, largest)
    with pytest.raises(CheckpointError, match="is a link"):
        phalanx.checkpoint.restore(build(strategy(1)), folder)


def test_a_huge_size_in_a_manifest_is_refused_before_any_memory_is_taken(folder):
    rewrite(folder, lambda found: found["arrays"][0].__setitem__(2, [2**40, 2**40]))
    with pytest.raises(CheckpointError, match="1099511627776x1099511627776 float32"):
        phalanx.checkpoint.restore(build(strategy(1)), folder)


def test_a_manifest_that_disagrees_with_its_arrays_is_refused(folder):
    def swap(found):
        same = [each for each in found["arrays"] if each[2] == [6]]
        same[0][4], same[1][4] = 1, 2

    rewrite(folder, swap)
    with pytest.raises(CheckpointError, match="other bytes"):
        phalanx.checkpoint.restore(build(strategy(1)), folder)


def test_a_save_that_fails_names_the_place_and_leaves_the_last_good_backup(folder, tmp_path):
    """Reports, row 53."""
    wall = tmp_path / "file"
    wall.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{wall}.*NotADirectoryError|{wall}.*FileExistsError"):
        phalanx.checkpoint.save(train(build(strategy(1))), wall)
    assert phalanx.checkpoint.latest(folder) == str(folder / "backup-00000001")
    assert phalanx.checkpoint.latest(tmp_path / "nowhere") is None


def test_an_unfinished_backup_never_counts(folder):
    os.rename(folder / "backup-00000001", folder / "unfinished-backup-00000001-7")
    assert phalanx.checkpoint.latest(folder) is None


def test_inspect_shows_what_a_backup_holds(folder):
    text = str(phalanx.checkpoint.inspect(folder))
    assert "net/hidden/kernel" in text or "hidden/kernel" in text
    assert "8x6 float32" in text and "4 updates" in text and "Adam" in text
