"""`phalanx cluster explain`: real processes, from the environment to the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

LAUNCHERS = (
    "TF_CONFIG",
    "KERAS_DISTRIBUTION",
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "SLURM",
    "OMPI",
    "PMI",
    "MPI_",
)
OTHERS = ("JOB", "REPLICATED", "NNODES", "POD_", "TPU", "CLOUD_TPU", "MEGASCALE", "JAX_COORDINATOR")
TWO = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})
TORCH = {"MASTER_ADDR": "t", "MASTER_PORT": "1", "RANK": "3", "WORLD_SIZE": "4"}


def phalanx(*arguments, python=("-m", "phalanx"), **environ):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*LAUNCHERS, *OTHERS))}
    return subprocess.run(
        [sys.executable, *python, *arguments],
        env=kept | {"PYTHONPATH": root} | environ,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_what_was_found_what_counts_and_what_conflicts_are_printed():
    done = phalanx("cluster", "explain", TF_CONFIG=TWO, **TORCH)
    assert (done.returncode, done.stderr) == (0, "")
    found, cluster = done.stdout.split("\n\n")
    lines = {line.split("  ")[0]: line for line in found.splitlines()}
    assert "worker 1 of 2, coordinator a:1" in lines["TF_CONFIG"] and lines["TF_CONFIG"].endswith("counts")
    assert lines["torchrun"].endswith("conflicts: 4 workers, not 2; index 3, not 1")
    assert lines["Slurm"].split() == ["Slurm", "nothing", "-"]
    assert "worker 1     b:1, this process" in cluster
    assert "note         torchrun conflicts: 4 workers, not 2; index 3, not 1" in cluster


def test_without_any_environment_one_worker_is_said():
    done = phalanx("cluster", "explain")
    assert done.returncode == 0
    assert "source       no environment" in done.stdout and "workers      1" in done.stdout


@pytest.mark.parametrize(
    ("environ", "verdict", "received"),
    [
        ({"WORLD_SIZE": "2"}, "incomplete", "WORLD_SIZE without MASTER_ADDR, MASTER_PORT, RANK"),
        ({"TF_CONFIG": "{cluster}"}, "wrong", "TF_CONFIG: '{cluster}', at character 1"),
        ({"TF_CONFIG": "x" * 100_000}, "wrong", "(100000 characters)"),
    ],
)
def test_an_environment_without_a_cluster_is_the_table_and_one_text_of_three_parts(
    environ, verdict, received
):
    done = phalanx("cluster", "explain", **environ)
    assert done.returncode == 2
    assert verdict in done.stdout
    rule, second, third = done.stderr.splitlines()
    assert rule.startswith("phalanx: ")
    assert second.startswith("  received: ") and received in second and len(second) < 400
    assert third.startswith("  next:     export ")


@pytest.mark.parametrize(
    "arguments",
    [["cluster", "explain"], ["cluster", "--help"], ["cluster", "explain", "--help"], ["cluster"]],
)
def test_it_loads_nothing_heavy(arguments):
    done = phalanx(*arguments, python=("-X", "importtime", "-m", "phalanx"))
    loaded = {line.rsplit("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0 and done.stdout
    assert "phalanx" in loaded
    assert not loaded & {"jax", "jaxlib", "keras", "numpy", "asyncio"}


def test_help_teaches_what_is_read_and_in_which_order():
    text = phalanx("cluster", "explain", "--help").stdout
    order = ["TF_CONFIG", "KERAS_DISTRIBUTION", "torchrun", "Slurm", "MPI", "Kubernetes", "TPU"]
    places = [text.index(f"\n  {name} ") for name in order]
    assert places == sorted(places)
    for word in ("NNODES", "SLURM_PROCID", "conflicts", "Exit code 2"):
        assert word in text
    assert "phalanx cluster explain" in phalanx("cluster").stdout
    assert "phalanx cluster explain" in phalanx("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "received", "paste"),
    [
        (["cluster", "explan"], "invalid choice: 'explan'", "phalanx cluster"),
        (["cluster", "explain", "--bogus"], "--bogus", "phalanx cluster --help"),
        (["clustre"], "'clustre'", "phalanx cluster"),
    ],
)
def test_bad_input_is_one_text_of_three_parts_and_exit_code_2(arguments, received, paste):
    done = phalanx(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    _, second, third = done.stderr.splitlines()
    assert received in second and third.startswith(f"  next:     {paste}")
