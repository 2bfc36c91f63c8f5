"""The benchmark of mixed precision gives its numbers as values that a program can read."""

import dataclasses
import importlib
import math
import sys
from pathlib import Path

import keras
import pytest

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


@pytest.fixture
def benchmark(monkeypatch):
    """Import the script as Python runs it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("mixed_precision")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(BENCHMARKS):
            del sys.modules[name]


def test_measure_returns_time_and_memory_per_policy_and_says_what_a_policy_is_worth(benchmark):
    case = dataclasses.replace(benchmark.CASES["mlp"], batch=8, steps=2)
    policies = ("float32", "mixed_float16")
    rows = benchmark.measure(case, policies, devices=["cpu:1"], rounds=2, seconds=0.01)

    assert [(row.device, row.policy) for row in rows] == [("cpu", policy) for policy in policies]
    assert all(len(row.ms_per_step) == 2 and row.ms > 0 for row in rows)
    weights_and_slots_mib = (
        3 * (784 * 100 + 100 + 100 * 10 + 10) * 4 / 2**20
    )  # Adam holds two slots per weight
    assert all(weights_and_slots_mib < row.step_mib < 4 * weights_and_slots_mib for row in rows)
    assert benchmark.speed(rows, "cpu", "float32") == 1.0
    assert math.isfinite(benchmark.speed(rows, "cpu", "mixed_float16"))
    assert keras.config.dtype_policy().name == "float32", "the user's policy is left alone"
    assert "mixed_float16" in benchmark.report({"cores": 2}, rows)
