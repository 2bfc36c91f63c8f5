"""`phalanx checkpoint ls|inspect|verify`: real processes, aligned tables, exit codes, no JAX."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import keras
import pytest

import phalanx as package

ROOT = pathlib.Path(__file__).parent.parent.parent


def phalanx(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "checkpoint", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backups")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="only")])
    model.compile("sgd", "mse")
    package.checkpoint.save(model, folder)
    package.checkpoint.save(model, folder)
    return folder


def test_ls_inspect_and_verify_show_a_folder_of_whole_backups(saved):
    done = phalanx("ls", saved)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["backup", "epochs", "steps", "updates", "size", "written", "state"]
    assert [line.split()[0] for line in lines[-2:]] == ["backup-00000001", "backup-00000002"]
    assert all(line.endswith("complete") for line in lines[-2:])
    done = phalanx("inspect", saved)
    assert done.returncode == 0 and "only/kernel" in done.stdout and "4x2 float32" in done.stdout
    done = phalanx("verify", saved)
    assert done.returncode == 0 and done.stdout.count("whole") == 2


def test_verify_finds_a_flipped_byte_and_ls_a_missing_part(saved, tmp_path):
    folder = pathlib.Path(shutil.copytree(saved, tmp_path / "copy"))
    parts = [p for p in (folder / "backup-00000002").rglob("*") if p.is_file() and "arrays" in p.parts]
    largest = max(parts, key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert phalanx("ls", folder).returncode == 0
    done = phalanx("verify", folder)
    assert done.returncode == 2 and "backup-00000002" in done.stderr and "other bytes" in done.stderr
    largest.unlink()
    assert "is missing" in phalanx("ls", folder).stdout


def test_a_folder_without_backups_and_no_action_say_what_to_type(tmp_path):
    done = phalanx("ls", tmp_path)
    assert done.returncode == 2 and "no backup in it" in done.stderr
    assert "verify DIR" in phalanx().stdout
    assert phalanx("ls", "--help").returncode == 0


def test_looking_at_backups_loads_no_jax(saved):
    code = (
        "import sys; from phalanx.cli.main import main; "
        f"main(['checkpoint', 'verify', {str(saved)!r}]); print([n for n in ('jax', 'keras', 'orbax') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
