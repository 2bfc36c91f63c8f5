"""kill -9 at every moment of a save: the older backup, or the newer one, is there and whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import itertools, json, os, shutil, signal, sys, traceback
import numpy as np
from phalanx.checkpoint import arrays, model
from phalanx.checkpoint.writer import Snapshot, Writer

def snapshot(number):
    values = {f"trainable.{i}": np.random.default_rng([number, i]).random(30_000) for i in range(3)}
    return Snapshot({key: f"net/{key}" for key in values}, values, {"updates": number}, {})

def save(number):
    with Writer("backups", keep=1) as writer:
        writer.save(snapshot(number))

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")

def in_child(work):
    # This process never starts the storage's threads: with them, it could not have children like itself.
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(work())
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    return pid

def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def save_until(event):
    # Save; at the event-th operation on files, in whichever thread, the process kills itself.
    seen = itertools.count(1)
    def watch(name, arguments):
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or name in CHANGES) and next(seen) == event:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    save(2)
    return 0

def newest():
    # The number of the newest good backup, after a look at every value in it.
    backup = model.newest_good("backups")
    found = arrays.read(f"{backup.path}/arrays", backup.manifest.entries)
    wanted = snapshot(backup.updates).values
    assert found.keys() == wanted.keys() and all((found[key] == wanted[key]).all() for key in wanted)
    return backup.updates

def again():
    # What a killed save left does no harm to the next one.
    save(3)
    assert len(os.listdir("backups")) == 1, os.listdir("backups")
    return newest()

assert end(in_child(lambda: save(1) or 0)) == 0
os.rename("backups", "first")
for event in itertools.count(1):
    shutil.copytree("first", "backups")
    killed = end(in_child(lambda: save_until(event)))
    print("result", json.dumps([killed, end(in_child(newest)), end(in_child(again))]), flush=True)
    shutil.rmtree("backups")
    if killed == 0:
        break
"""


def test_killed_at_each_operation_on_files_the_older_or_the_newer_backup_is_whole(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("result ")]
    assert done.returncode == 0, done.stderr
    *killed, (last, newest, _) = found
    assert (last, newest) == (0, 2), "the last child was left in peace"
    assert len(killed) > 10 and {code for code, _, _ in killed} == {-9}
    assert [newest for _, newest, _ in killed] == sorted(newest for _, newest, _ in killed), found
    assert {newest for _, newest, _ in killed} == {1, 2}, (
        "killed before the new name, and while the old one goes"
    )
    assert {after for _, _, after in found} == {3}
