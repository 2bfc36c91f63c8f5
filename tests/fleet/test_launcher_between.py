"""What one run of the workers leaves for the next: compiled programs, and the sign that it got on."""

import json
import stat

import pytest

from tests.fleet.launching import TWO, finish, launches, supervise


@pytest.fixture
def run(tmp_path):
    for launch in launches(tmp_path):
        yield lambda *arguments, seconds=60, **more: finish(launch(*arguments, **more), seconds)


LOOK = """
names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
         "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "PHALANX_PROGRESS")
found = [os.environ.get(name) for name in names]
mode = os.stat(os.path.dirname(found[3])).st_mode if found[3] else None
with open(f"runs{index}", "a+") as runs:
    runs.write(json.dumps([found, mode]) + "\\n")
    runs.seek(0)
    count = len(runs.readlines())
sys.exit(3 if index == 0 and count == 1 and "--fail" in sys.argv else 0)
"""
FREE = {
    "JAX_COMPILATION_CACHE_DIR": "",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "",
}


def looks(folder, index=0):
    return [json.loads(line) for line in (folder / f"runs{index}").read_text().splitlines()]


def test_workers_that_may_start_again_share_a_private_cache_which_is_gone_at_the_end(run, tmp_path):
    code, _, err = run(
        LOOK, *TWO, "--max-restarts", "1", arguments=["--fail"], variables=FREE | {"TMPDIR": str(tmp_path)}
    )
    assert code == 0, err
    (found, mode), *others = looks(tmp_path)
    assert others[:1] == [[found, mode]] and looks(tmp_path, 1)[-1] == [found, mode]
    cache, seconds, size, progress = found
    folder = cache.removesuffix("/compiled")
    assert folder.startswith(f"{tmp_path}/phalanx-run-") and progress == f"{folder}/progress"
    assert (seconds, size) == ("0", "-1")
    assert stat.S_IMODE(mode) == 0o700
    assert not list(tmp_path.glob("phalanx-run-*"))


def test_a_cache_of_the_users_own_is_left_alone(run, tmp_path):
    mine = {"JAX_COMPILATION_CACHE_DIR": "/mine", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "7"}
    code, _, err = run(LOOK, *TWO, "--max-restarts", "1", variables=FREE | mine)
    assert code == 0, err
    assert looks(tmp_path)[0][0][:3] == ["/mine", "7", ""]


def test_workers_that_never_start_again_get_nothing(run, tmp_path):
    code, _, err = run(LOOK, *TWO, variables=FREE | {"TMPDIR": str(tmp_path)})
    assert code == 0, err
    assert looks(tmp_path) == [[["", "", "", None], None]]


def test_without_a_place_for_it_the_workers_run_all_the_same(run, tmp_path):
    variables = FREE | {"TMPDIR": "/proc/1", "TEMP": "/proc/1", "TMP": "/proc/1"}
    code, _, err = run(LOOK, "--workers", "1", "--max-restarts", "1", variables=variables)
    assert code == 0, err
    assert looks(tmp_path)[0][0][3] is not None, "a system has more than one temporary folder"


@pytest.mark.parametrize("code", [75, 3])
def test_short_runs_that_complete_a_backup_are_no_crash_loop(run, tmp_path, code):
    job = f"""
from phalanx.host import progress
with open(f"runs{{index}}", "a+") as runs:
    runs.write("x")
    count = runs.tell()
if index == 0:
    progress.tell()
    sys.exit({code} if count < 6 else 0)
"""
    code, _, err = run(job, python=supervise("backoff=0, max_restarts=9"))
    assert code == 0, err
    assert (tmp_path / "runs0").read_text() == "x" * 6


COMPILE = """
import jax
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("/cache_hits")))
import numpy as np
import phalanx, keras
strategy = phalanx.MultiWorkerMirroredStrategy(connect_timeout=60)
with strategy.scope():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
before = len(hits)
losses = model.fit(x, x[:, :1], batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
with open(f"runs{index}", "a+") as runs:
    runs.write(json.dumps([losses, sum(hits[before:])]) + "\\n")
    runs.seek(0)
    count = len(runs.readlines())
sys.exit(75 if count < 2 else 0)
"""


def test_a_restart_compiles_nothing_twice_and_computes_the_same(run, tmp_path):
    options = (*TWO, "--replicas", "1", "--max-restarts", "1")
    code, _, err = run(COMPILE, *options, python=("-m", "phalanx", "run"), variables=FREE, seconds=150)
    assert code == 0, err
    assert err.count("preempted: restart, not counted") == 1, "and the other worker's 75 is none of its own"
    for index in (0, 1):
        (losses, first), *again = looks(tmp_path, index)
        assert [each for each, _ in again] == [losses]
        assert first < min(hits for _, hits in again), looks(tmp_path, index)
