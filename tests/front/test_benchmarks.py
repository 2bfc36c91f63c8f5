"""Benchmarks give their numbers as values that a program can read."""

import dataclasses
import importlib
import math
import sys
from pathlib import Path

import keras
import pytest

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


@pytest.fixture
def load(monkeypatch):
    """Import a script as Python runs it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(BENCHMARKS):
            del sys.modules[name]


def test_measure_returns_time_and_memory_per_policy_and_says_what_a_policy_is_worth(load):
    benchmark = load("mixed_precision")
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


def test_what_followed_a_fault_is_split_into_its_parts_and_a_cut_off_one_is_counted_only(load):
    benchmark = load("recoveries")
    notes = [(0, "begin", 0), (1, "first", 1), (2, "step", 1), (3, "step", 2)]  # the fault comes at 4
    notes += [(7, "begin", 0), (8, "first", 2), (10, "step", 2), (13, "step", 3)]  # and at 14, and at 15.5
    notes += [(20, "begin", 0), (22, "first", 3), (25, "step", 3), (29, "step", 4)]
    events = [{"at": at, "what": what, "step": step} for at, what, step in notes]
    faults = [(4, 3, "kill"), (14, 4, "stop"), (15.5, 4, "kill")]
    faults = [{"at": at, "step": step, "what": what} for at, step, what in faults]

    found = benchmark.recoveries(faults, [5, 15, 17], events)
    assert [each.whole for each in found] == [True, False, True]
    assert list(found[0].seconds.values()) == [1, 2, 1, 2, 3] and found[0].total == 9
    assert found[1].seconds == {"notice": 1}
    assert list(found[2].seconds.values()) == [1.5, 3, 2, 3, 4]
    assert benchmark.repeated(events) == (4, 2)

    text = benchmark.report([benchmark.Run(found, 4, 2, True), benchmark.Run([], 4, 0, None)])
    assert "all        3         2    1.25     2.50     1.50     2.50    3.50           11.25" in text
    assert "runs 2, of which 1 came to their end; steps done again 2 of 8 (25%); wrong results 0" in text
    assert benchmark.recoveries([], [], []) == []
