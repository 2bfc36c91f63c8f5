"""The `phalanx` command: real processes, from the command line to the script's own last words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from phalanx.errors import DeviceError, SettingError, UnsupportedError
from phalanx.host.accelerators import Accelerators
from phalanx.launch.replicas import plan_run

OURS = ("JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "KERAS_BACKEND", "NPROC", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES")
REPORT = """
import json, os, sys
names = ("JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "KERAS_BACKEND", "NPROC")
print(json.dumps({"argv": sys.argv, "pid": os.getpid(), "env": {n: os.environ.get(n) for n in names}}))
"""
COUNT = "import jax; print(jax.device_count(), jax.devices()[0].platform)"
GPUS = Accelerators("NVIDIA GPU", 4, usable=True)


def clean(**environ):
    return {name: value for name, value in os.environ.items() if name not in OURS} | environ


def phalanx(*arguments, cwd, environ=None, python=("-m", "phalanx")):
    """Run the command in a folder; the package is found through PYTHONPATH, installed or not."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return subprocess.run(
        [sys.executable, *python, *arguments],
        cwd=cwd,
        env=clean(PYTHONPATH=root, **(environ or {})),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def script(tmp_path):
    (tmp_path / "report.py").write_text(REPORT)
    return tmp_path


# The script


@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_jax_inside_the_script_sees_as_many_devices_as_replicas(tmp_path, replicas):
    (tmp_path / "count.py").write_text(COUNT)
    done = phalanx(
        "run", "--replicas", str(replicas), "count.py", cwd=tmp_path, environ={"JAX_PLATFORMS": "cpu"}
    )
    assert done.stdout.split() == [str(replicas), "cpu"], done.stderr
    assert done.stderr.startswith(f"phalanx: {replicas} CPU replica")


@pytest.mark.parametrize(
    "environ",
    [{"JAX_NUM_CPU_DEVICES": "4"}, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}],
    ids=["jax", "xla"],
)
def test_replicas_win_over_the_environment_and_say_so(tmp_path, environ):
    (tmp_path / "count.py").write_text(COUNT)
    environ["JAX_PLATFORMS"] = "cpu"
    done = phalanx("run", "--replicas", "2", "count.py", cwd=tmp_path, environ=environ)
    assert done.stdout.split() == ["2", "cpu"], done.stderr
    assert "--replicas wins over" in done.stderr and "=4" in done.stderr


def test_arguments_behind_the_script_are_its_own(script):
    hostile = [
        "--replicas",
        "7",
        "--help",
        "-m",
        "--",
        "$(touch no)",
        "`id`",
        "a'b\"c",
        "two\nlines",
        "",
        "*",
        "é",
    ]
    done = phalanx("run", "--replicas", "2", "report.py", *hostile, cwd=script)
    assert json.loads(done.stdout)["argv"] == ["report.py", *hostile]
    assert sorted(os.listdir(script)) == ["report.py"]


@pytest.mark.parametrize(
    "name", ["with space.py", "a'b\"c.py", "two\nlines.py", "$(touch no).py", "-dash.py"]
)
def test_script_names_are_taken_as_they_are(tmp_path, name):
    (tmp_path / name).write_text(REPORT)
    done = phalanx("run", "--", name, "-x", cwd=tmp_path)
    assert json.loads(done.stdout)["argv"] == [name, "-x"], done.stderr
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("joined", [False, True])
def test_a_module_runs_as_python_would_run_it(tmp_path, joined):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(REPORT)
    module = ["-mpackage.train"] if joined else ["-m", "package.train"]
    done = phalanx("run", "--replicas", "2", *module, "--replicas", "9", cwd=tmp_path)
    assert json.loads(done.stdout)["argv"][1:] == ["--replicas", "9"], done.stderr


def test_what_the_user_set_stays_and_the_rest_is_set(script):
    mine = {"NPROC": "3", "JAX_PLATFORMS": "cpu"}
    done = phalanx("run", "--replicas", "5", "report.py", cwd=script, environ=mine)
    wanted = {**mine, "KERAS_BACKEND": "jax", "JAX_NUM_CPU_DEVICES": "5"}
    assert json.loads(done.stdout)["env"] == wanted


def test_options_of_python_stay(script):
    (script / "flags.py").write_text("import sys; print(sys.flags.dev_mode, sys.dont_write_bytecode)")
    done = phalanx("run", "flags.py", cwd=script, python=("-X", "dev", "-Bm", "phalanx"))
    assert done.stdout.split() == ["True", "True"], done.stderr


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_scripts(tmp_path, code):
    (tmp_path / "leave.py").write_text(f"raise SystemExit({code})")
    assert phalanx("run", "leave.py", cwd=tmp_path).returncode == code


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_script_because_it_is_the_process(tmp_path, signum):
    (tmp_path / "wait.py").write_text(
        "import os, signal, sys, time\n"
        "for each in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(each, lambda number, frame: sys.exit(40 + number))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "phalanx", "run", "--replicas", "2", str(tmp_path / "wait.py")]
    with subprocess.Popen(
        command, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert int(process.stdout.readline()) == process.pid, "a parent was left behind"
            process.send_signal(signum)
            assert process.wait(timeout=30) == 40 + signum
        finally:
            process.kill()


# The command itself


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"], []])
def test_help_and_version_load_nothing_heavy(arguments, tmp_path):
    done = phalanx(*arguments, cwd=tmp_path, python=("-X", "importtime", "-m", "phalanx"))
    loaded = {line.rsplit("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0 and done.stdout
    assert "phalanx" in loaded
    assert not loaded & {"jax", "jaxlib", "keras", "numpy"}


def test_help_teaches_what_is_set_and_shows_examples(tmp_path):
    text = phalanx("run", "--help", cwd=tmp_path).stdout
    for word in (*OURS[:4], "CUDA_VISIBLE_DEVICES", "examples:", "--replicas 2 train.py", "TF_CONFIG", "75"):
        assert word in text


BAD = {
    "no script": ([], "no script"),
    "missing": (["nope.py"], "'nope.py', which is not there"),
    "folder": (["folder"], "'folder', which is a folder"),
    "zero": (["--replicas", "0", "report.py"], "--replicas 0"),
    "negative": (["--replicas", "-1", "report.py"], "--replicas -1"),
    "word": (["--replicas", "two", "report.py"], "--replicas two"),
    "fraction": (["--replicas=2.5", "report.py"], "--replicas 2.5"),
    "five thousand digits": (["--replicas", "9" * 5000, "report.py"], "--replicas 999"),
    "no number": (["--replicas"], "expected one argument"),
    "no module": (["-m"], "expected one argument"),
    "unknown option": (["--bogus", "report.py"], "--bogus"),
    "abbreviation": (["--replica=2", "report.py"], "--replica=2"),
    "no workers": (["--workers", "0", "report.py"], "--workers 0"),
    "a fork bomb": (["--workers", "99999", "report.py"], "--workers 99999"),
    "restarts of nothing": (["--max-restarts", "2", "report.py"], "--max-restarts 2 without --workers"),
    "grace for nothing": (["--grace=2", "report.py"], "--grace 2 without --workers"),
    "another place": (["--on", "spark", "--workers", "2", "report.py"], "--on spark"),
    "an address of nothing": (["--address", "a:1", "report.py"], "--address a:1 without --on"),
    "ray without workers": (["--on", "ray", "report.py"], "--on ray without --workers"),
    "ray with a port": (["--on", "ray", "--workers", "2", "--port", "7", "report.py"], "--on ray --port 7"),
    "port for nothing": (["--port", "7000", "report.py"], "--port 7000 without --workers"),
    "restarts": (["--workers", "2", "--max-restarts", "-1", "report.py"], "--max-restarts -1"),
    "grace": (["--workers", "2", "--grace", "nan", "report.py"], "--grace nan"),
    "port": (["--workers", "2", "--port", "65535", "report.py"], "--port 65535"),
    "workers without script": (["--workers", "2"], "no script"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_text_of_three_parts_and_exit_code_2(script, case):
    arguments, received = BAD[case]
    (script / "folder").mkdir()
    done = phalanx("run", *arguments, cwd=script)
    assert done.returncode == 2 and done.stdout == ""
    rule, second, third = done.stderr.splitlines()
    assert rule.startswith("phalanx: ")
    assert second.startswith("  received: ") and received in second
    assert third.startswith("  next:     phalanx run")


@pytest.mark.parametrize(
    ("typed", "next_line"), [("rum", "phalanx run"), ("t.py", "phalanx run t.py"), ("x", "phalanx --help")]
)
def test_an_unknown_command_gets_a_suggestion(tmp_path, typed, next_line):
    done = phalanx(typed, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[1:] == [f"  received: {typed!r}", f"  next:     {next_line}"]


def test_another_keras_backend_is_an_error_with_the_line_to_paste(script):
    done = phalanx("run", "report.py", cwd=script, environ={"KERAS_BACKEND": "torch"})
    assert done.returncode == 2
    assert "KERAS_BACKEND=torch" in done.stderr
    assert done.stderr.endswith("next:     export KERAS_BACKEND=jax\n")


# The decision


def plan(replicas=None, found=None, cpus=2, **environ):
    return plan_run(replicas, environ, found or Accelerators(), cpus)


@pytest.mark.parametrize(
    ("replicas", "cpus", "threads"), [(1, 2, "2"), (2, 2, "4"), (8, 2, "16"), (2, 64, "64")]
)
def test_the_thread_pool_is_twice_the_replicas_or_all_cores(replicas, cpus, threads):
    assert plan(replicas, cpus=cpus).changes["NPROC"] == threads


def test_without_a_number_nothing_is_counted_and_jax_may_look_around():
    decided = plan()
    assert decided.changes == {"KERAS_BACKEND": "jax"}
    assert decided.reason == "1 CPU replica (no accelerator found; --replicas N makes N)"


def test_a_number_in_the_environment_counts_when_none_is_given():
    decided = plan(JAX_NUM_CPU_DEVICES="4", XLA_FLAGS="--xla_force_host_platform_device_count=6")
    assert decided.changes == {"KERAS_BACKEND": "jax", "NPROC": "8"}
    assert decided.reason == "4 CPU replicas (no accelerator found; JAX_NUM_CPU_DEVICES=4)"


def test_more_than_64_cpu_replicas_warn_with_both_numbers():
    assert plan(64).warning is None
    assert "65 replicas on 2 cores" in plan(65).warning


@pytest.mark.parametrize(
    ("replicas", "chosen", "set_to", "reason"),
    [
        (None, None, None, "4 NVIDIA GPUs"),
        (4, None, None, "4 NVIDIA GPUs"),
        (2, None, "0,1", "2 of 4 NVIDIA GPUs"),
        (1, "3,1", "3", "1 of 2 NVIDIA GPUs"),
        (1, "GPU-aa, MIG-bb", "GPU-aa", "1 of 2 NVIDIA GPUs"),
        (None, "3,-1,2", None, "1 NVIDIA GPU"),
    ],
)
def test_the_first_visible_gpus_are_taken(replicas, chosen, set_to, reason):
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    decided = plan(replicas, GPUS, **environ)
    assert decided.reason == reason
    assert decided.changes.get("CUDA_VISIBLE_DEVICES") == set_to
    assert "NPROC" not in decided.changes and "JAX_PLATFORMS" not in decided.changes


def test_amd_gpus_have_their_own_variable():
    assert plan(1, Accelerators("AMD GPU", 2, usable=True)).changes["HIP_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize(("replicas", "environ", "have"), [(5, {}, 4), (2, {"CUDA_VISIBLE_DEVICES": "3"}, 1)])
def test_more_replicas_than_visible_gpus_is_an_error_with_both_numbers(replicas, environ, have):
    with pytest.raises(DeviceError, match=rf"--replicas {replicas}, but {have} visible NVIDIA GPU"):
        plan(replicas, GPUS, **environ)


@pytest.mark.parametrize(
    ("found", "environ", "why"),
    [
        (Accelerators("NVIDIA GPU", 2), {}, "2 NVIDIA GPUs found, but JAX's plugin is not installed"),
        (GPUS, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= hides 4 NVIDIA GPUs"),
        (GPUS, {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES=-1 hides 4 NVIDIA GPUs"),
        (GPUS, {"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS=cpu"),
        (GPUS, {"JAX_PLATFORMS": "cpu,cuda"}, "JAX_PLATFORMS=cpu,cuda"),
    ],
)
def test_gpus_that_jax_will_not_use_leave_cpu_replicas_and_the_reason(found, environ, why):
    decided = plan(3, found, **environ)
    assert decided.reason == f"3 CPU replicas ({why})"
    assert decided.changes["JAX_NUM_CPU_DEVICES"] == "3"
    assert decided.changes.get("JAX_PLATFORMS", environ.get("JAX_PLATFORMS")).startswith("cpu")


def test_a_platform_that_is_not_there_is_an_error_only_where_replicas_must_be_counted():
    assert plan(JAX_PLATFORMS="metal").reason == "JAX_PLATFORMS=metal (no accelerator found)"
    with pytest.raises(SettingError, match="JAX_PLATFORMS=cuda .no accelerator found"):
        plan(2, JAX_PLATFORMS="cuda")
    assert "JAX_PLATFORMS" not in plan(2, JAX_PLATFORMS="cuda,cpu").changes


def test_a_part_of_a_tpu_host_is_a_grid_of_whole_chips():
    chips = Accelerators("TPU", 4, usable=True)
    assert plan(4, chips).changes == {"KERAS_BACKEND": "jax"}
    part = plan(2, chips).changes
    assert (part["TPU_VISIBLE_CHIPS"], part["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == ("0,1", "1,2,1")
    with pytest.raises(UnsupportedError, match="--replicas 3 of 4"):
        plan(3, chips)
    double = Accelerators("TPU", 8, usable=True, devices_per_chip=2)
    assert plan(4, double).changes["TPU_VISIBLE_CHIPS"] == "0,1"
    with pytest.raises(UnsupportedError, match="has 2, 4, 8 devices"):
        plan(1, double)
