"""Two runs beside each other: what differs, where first, and by how much."""

import numpy as np
import pytest

from phalanx import SettingError
from phalanx.compare import Difference, Report, compare, difference

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "a, b, size",
    [
        (1.0, 1.0, 0.0),
        (0.0, 0.25, 0.25),  # absolute below one
        (0.5, 0.25, 0.25),
        (200.0, 201.0, 0.005),  # relative above
        (-200.0, -201.0, 0.005),
        ([1.0, 2.0], [1.0, 2.5], 0.25),
        ([], [], 0.0),
        (3, 4, 1 / 3),
        (True, False, 1.0),
        (NAN, NAN, 0.0),
        ([NAN, 1.0], [NAN, 1.5], 0.5),
        (INF, INF, 0.0),
        (-INF, -INF, 0.0),
    ],
)
def test_the_size_of_a_difference(a, b, size):
    assert difference(a, b) == pytest.approx(size, abs=1e-12)


@pytest.mark.parametrize(
    "a, b",
    [
        (NAN, 1.0),
        (1.0, NAN),
        ([1.0, NAN], [NAN, 1.0]),
        (INF, -INF),
        (INF, 1.0),
        (1.0, INF),
        ([1.0], 1.0),
        ([1.0, 2.0], [1.0]),
        (np.zeros((2, 3)), np.zeros((3, 2))),
    ],
)
def test_nan_infinity_or_a_shape_on_one_side_differs_without_bound(a, b):
    assert difference(a, b) == INF


def test_float32_is_compared_in_float64():
    assert 0 < difference(np.float32(1), np.nextafter(np.float32(1), np.float32(2))) < 2e-7


def test_values_are_compared_by_name_in_the_order_of_the_run():
    found = compare(3, "log", {"loss": 1.0, "mae": 2.0}, {"mae": 2.0, "loss": 1.5})
    assert found == [
        Difference(kind="log", name="loss", step=3, size=0.5),
        Difference(kind="log", name="mae", step=3, size=0.0),
    ]


def test_a_name_on_one_side_alone_differs_without_bound():
    found = {d.name: d.size for d in compare(1, "variable", {"a": 1.0, "b": 1.0}, {"b": 1.0, "c": 1.0})}
    assert found == {"a": INF, "b": 0.0, "c": INF}


def report(*sizes):
    """One difference per step, of a loss and of a kernel ten times as large."""
    found = []
    for step, size in enumerate(sizes, start=1):
        found.append(Difference(kind="log", name="loss", step=step, size=size))
        found.append(Difference(kind="variable", name="d1/kernel", step=step, size=10 * size))
    return Report(oracle="one device", candidate="four replicas", differences=tuple(found))


def test_equal_within_the_tolerance_and_not_beyond():
    assert report(0.0, 1e-7).equal()
    assert report(1e-6).equal()  # the kernel is at the bound itself
    assert not report(1e-5).equal()
    assert report(1e-5).equal(tolerance=1e-4)
    assert not report(1e-9).equal(tolerance=0)
    assert report(0.0).equal(tolerance=0)


@pytest.mark.parametrize("size", [NAN, INF])
def test_what_has_no_bound_is_never_equal(size):
    assert not report(size).equal(tolerance=1e9)


@pytest.mark.parametrize("tolerance", [-1e-5, NAN])
def test_a_tolerance_below_zero_is_refused(tolerance):
    with pytest.raises(SettingError, match=f"tolerance={tolerance}"):
        report(0.0).equal(tolerance)


def test_the_first_difference_is_the_earliest_step_and_in_it_the_largest():
    first = report(0.0, 1e-3, 1.0).first()
    assert (first.step, first.name) == (2, "d1/kernel")
    assert report(0.0).first() is None


def test_the_largest_of_all_steps_by_name():
    found = report(1e-3, 1e-2, 1e-4)
    assert found.steps == 3
    assert found.largest == pytest.approx(0.1)
    assert found.by_name() == {"loss": 1e-2, "d1/kernel": pytest.approx(0.1)}


def test_an_empty_report_has_no_steps_and_no_differences():
    assert (report().steps, report().largest, report().by_name()) == (0, 0.0, {})


def test_the_table_names_both_sides_the_verdict_and_each_quantity():
    good, bad = str(report(1e-8)), str(report(0.0, 1e-3))
    assert "four replicas\nagainst one device: equal within 1e-05 over 1 steps" in good
    assert "first difference beyond 1e-05: d1/kernel after step 2 (1.0e-02)" in bad
    assert ["variable", "d1/kernel", "1.0e-02"] in [line.split() for line in bad.splitlines()]
    assert ["log", "loss", "1.0e-03"] in [line.split() for line in bad.splitlines()]
