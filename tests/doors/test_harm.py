"""Harm on purpose: only what was asked for, once, and nothing that a test could not undo."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.host import harm

ROOT = Path(__file__).resolve().parents[2]


def test_a_byte_changes_and_no_other(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(range(100)))
    harm.flip_byte(str(file))
    changed = [at for at, byte in enumerate(file.read_bytes()) if byte != at]
    assert changed == [50]


def test_a_disk_with_much_room_is_not_filled(tmp_path):
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    if free <= 256 << 20:
        pytest.skip("this disk is small")
    assert "more than the 256 that may be filled" in harm.fill(str(tmp_path), True)
    assert os.listdir(tmp_path) == []
    assert harm.fill(str(tmp_path), False) is None


def test_a_folder_becomes_read_only_and_writable_again_or_the_reason_is_given(tmp_path):
    refused = harm.make_read_only(str(tmp_path), True)
    if os.geteuid() == 0:
        assert "it is no mount of its own" in refused
        return
    assert refused is None and not os.access(tmp_path, os.W_OK)
    harm.make_read_only(str(tmp_path), False)
    assert os.access(tmp_path, os.W_OK)


def test_a_fault_is_claimed_once(tmp_path):
    assert harm.claim(str(tmp_path / "fault"), "first") and not harm.claim(str(tmp_path / "fault"), "second")
    assert (tmp_path / "fault").read_text() == "first"
    for line in ("one", "two"):
        harm.append(str(tmp_path / "lines"), line)
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(("writing", "left"), [(True, ["a", "noted"]), (False, ["a", "b", "c", "noted"])])
def test_the_process_ends_at_the_operation_asked_for_and_notes_it_before(tmp_path, writing, left):
    code = f"""
import os
from phalanx.host import harm
place = {str(tmp_path)!r}
harm.kill_at_files("MainThread", {writing}, place + "/", 2, lambda: open(place + "/noted", "w").close())
open("/dev/null", "w").close()
for name in "abc":
    open(f"{{place}}/{{name}}", "w").close()
for name in "abc":
    open(f"{{place}}/{{name}}").close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == left
