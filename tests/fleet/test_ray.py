"""`phalanx run --on ray`: a real cluster of two nodes on this machine, ended with the test."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.fleet.launching import environ, finish
from tests.fleet.test_equal_to_one_device import ALONE, WORK
from tests.fleet.workers import ROOT, START, assert_close, run

CLUSTER = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster
options = {"num_cpus": 2, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
cluster.add_node(**options)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def address():
    """Two nodes with two CPUs each."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "RAY_"))}
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=clean | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        found = next((line for line in iter(process.stdout.readline, "") if line[:1].isdigit()), "")
        assert found, "the cluster did not start"
        yield found.strip()
        process.stdin.close()
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


@pytest.fixture
def launch(address, tmp_path):
    started = []

    def go(code, *options):
        (tmp_path / "job.py").write_text(code)
        command = [sys.executable, "-m", "phalanx", "run", "--on", "ray", "--address", address]
        started.append(
            subprocess.Popen(
                [*command, "--workers", "2", *options, "job.py"],
                cwd=tmp_path,
                env=environ(KERAS_BACKEND="jax", TF_CPP_MIN_LOG_LEVEL="3"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        return started[-1]

    yield go
    for process in started:
        process.kill()
        process.communicate()


def results(text, prefix=""):
    return [
        json.loads(line[len(prefix) + 7 :])
        for line in text.splitlines()
        if line.startswith(prefix + "result ")
    ]


def test_two_nodes_train_to_the_one_device_result(launch, tmp_path):
    code, out, err = finish(launch(START + WORK), 200)
    assert code == 0, err
    (tmp_path / "alone").mkdir()
    (alone,) = run(ALONE, tmp_path / "alone", count=1)[0]
    (chief,), (other,) = results(out), results(out, "[worker 1] ")
    assert_close(chief, alone)
    assert other == chief


FAILS = """
import json, os, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("here", index, flush=True)
if index == 1:
    sys.exit("row 17 holds no number")
import time
time.sleep(600)
"""


def test_the_first_failure_ends_all_is_named_and_restarts_by_the_policy(launch):
    code, out, err = finish(launch(FAILS, "--max-restarts", "1", "--grace", "1"), 120)
    assert code == 1, err
    assert out.count("[worker 1] here 1") == 2
    assert "worker 1 left with code 1: restart 1 of 1" in err
    assert "worker 1 left with code 1; 1 restart used up; the last lines of its standard error:" in err
    assert err.rstrip().endswith("row 17 holds no number")


def test_a_worker_that_is_gone_with_its_node_counts_as_killed(launch):
    """Its actor dies, and the script with it; the others are ended."""
    code, _, err = finish(
        launch(
            FAILS.replace('sys.exit("row 17 holds no number")', "os.kill(os.getppid(), 9)"), "--grace", "1"
        ),
        60,
    )
    assert (
        code == 137
        and "worker 1 was ended by SIGKILL (code 137)" in err
        and "its node or actor is gone" in err
    )


def test_ctrl_c_ends_all_workers(launch, tmp_path):
    process = launch(
        "import os, time\nopen(os.environ['TF_CONFIG'][-3] + '.pid', 'w').write(str(os.getpid()))\nprint('here', flush=True)\ntime.sleep(600)\n",
        "--grace",
        "1",
    )
    assert process.stdout.readline().strip().endswith(b"here") and process.stdout.readline().strip().endswith(
        b"here"
    )
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process, 60)
    assert code == 130 and "SIGINT: 2 workers asked to end" in err
    for index in (0, 1):
        assert not os.path.exists(f"/proc/{(tmp_path / f'{index}.pid').read_text()}")


def test_more_workers_than_the_cluster_has_room_for_are_refused_at_once(launch):
    code, _, err = finish(launch("", "--workers", "9"), 90)
    assert code == 2 and "9 workers of {'CPU': 1}; the cluster has 4 CPU, 0 GPU" in err
