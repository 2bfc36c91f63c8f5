"""`phalanx checkpoint`: tables, verdicts, exit codes; without JAX for all but a whole verification."""

import json
import subprocess
import sys
import zlib

import numpy as np
import pytest

from phalanx.checkpoint import model
from phalanx.checkpoint.manifest import Entry, Manifest, checksum
from phalanx.cli.main import main
from phalanx.host import store


@pytest.fixture
def place(tmp_path):
    """Two backups of one small file each, made without an engine."""
    for number in (1, 2):
        backup = tmp_path / f"backup-0000000{number}"
        (backup / "arrays").mkdir(parents=True)
        (backup / "arrays" / "data").write_bytes(bytes(12))
        entry = Entry("trainable.0", "dense/kernel", (3,), "float32", zlib.crc32(bytes(12)))
        files = {"arrays/data": (12, store.digest(f"{backup}/arrays/data"))}
        progress = {"epoch": number, "step": 4, "updates": 10 * number, "callbacks": [["History", {}]]}
        manifest = Manifest((entry,), files, progress, {"optimizer": "Adam"}, 0.0)
        (backup / "manifest.json").write_bytes(manifest.to_json())
    return tmp_path


def test_ls_inspect_and_verify_of_good_backups(place, capsys):
    main(["checkpoint", "ls", str(place)])
    out = capsys.readouterr().out
    assert "backup-00000001" in out and out.count("complete") == 2 and "updates" in out
    main(["checkpoint", "inspect", str(place)])
    out = capsys.readouterr().out
    assert "dense/kernel" in out and "3 float32" in out and "after 2 epochs and 4 steps, 20 updates" in out


def test_verify_reads_each_array_back_though_its_bytes_are_those_of_the_manifest(tmp_path, capsys):
    values = {"trainable.0": np.arange(6.0), "optimizer.0": np.zeros((0, 3))}
    paths = {"trainable.0": "dense/kernel", "optimizer.0": "adam/nothing"}
    for number in (1, 2):
        model.write(str(tmp_path), paths, values, {"updates": number}, {})
    main(["checkpoint", "verify", str(tmp_path)])
    assert capsys.readouterr().out.count("whole") == 2

    manifest = tmp_path / "backup-00000002" / "manifest.json"
    found = json.loads(manifest.read_text())
    found["arrays"][0][4] += 1
    del found["checksum"]
    manifest.write_text(json.dumps(found | {"checksum": checksum(found)}))
    with pytest.raises(SystemExit) as left:
        main(["checkpoint", "verify", str(tmp_path)])
    out, err = capsys.readouterr()
    assert left.value.code == 2 and "dense/kernel does not read back" in err and out.count("whole") == 1


def test_what_no_storage_can_read_is_named(place, capsys):
    with pytest.raises(SystemExit) as left:
        main(["checkpoint", "verify", str(place)])
    assert left.value.code == 2
    assert capsys.readouterr().err.count("dense/kernel does not read back") == 2


def test_a_flipped_byte_is_found_by_verify_and_a_missing_file_by_ls(place, capsys):
    (place / "backup-00000002" / "arrays" / "data").write_bytes(bytes(11) + b"x")
    main(["checkpoint", "ls", str(place)])
    with pytest.raises(SystemExit) as left:
        main(["checkpoint", "verify", str(place)])
    assert left.value.code == 2 and "backup-00000002: arrays/data has other bytes" in capsys.readouterr().err
    (place / "backup-00000002" / "arrays" / "data").unlink()
    main(["checkpoint", "ls", str(place)])
    assert "arrays/data is missing" in capsys.readouterr().out


def test_no_backup_and_no_action(tmp_path, capsys):
    for action in ("ls", "inspect", "verify"):
        with pytest.raises(SystemExit) as left:
            main(["checkpoint", action, str(tmp_path)])
        assert left.value.code == 2 and "no backup in it" in capsys.readouterr().err
    main(["checkpoint"])
    assert "verify DIR" in capsys.readouterr().out


def test_looking_loads_no_jax(place):
    code = f"""
import sys
from phalanx.cli.main import main
for action in ("ls", "inspect"):
    main(["checkpoint", action, {str(place)!r}])
sys.exit("jax" in sys.modules or "numpy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
