"""When a backup is due: decided from values, with the reason as a sentence."""

import math
from datetime import timedelta

import numpy as np
import pytest

from phalanx.checkpoint.rhythm import ASSUMED, Rhythm, best_interval
from phalanx.errors import PhalanxWarning, SettingError


def due(save_freq, updates=10, seconds=10.0, epoch_ended=False, cost=1.0, **more):
    return Rhythm.of(save_freq, **more).due(updates, seconds, epoch_ended, cost)


def test_each_rhythm_is_due_when_its_own_measure_is_full():
    assert due("epoch", epoch_ended=True) and not due("epoch", updates=10**6, seconds=10**6)
    assert due(10) and due(np.int64(9)) and not due(11, seconds=10**6, epoch_ended=True)
    ten = timedelta(seconds=10)
    assert due(ten) and not due(ten, seconds=9.9, updates=10**6, epoch_ended=True)


def test_nothing_is_due_where_nothing_was_trained_since():
    for save_freq in ("epoch", 1, timedelta(seconds=1), "auto"):
        assert not due(save_freq, updates=0, seconds=10**6, epoch_ended=True)


def test_auto_saves_early_to_learn_the_cost_then_as_often_as_loses_least():
    assert not due("auto", cost=None, seconds=59)
    assert due("auto", cost=None, seconds=60) and due("auto", cost=None, epoch_ended=True)
    assert not due("auto", seconds=400, epoch_ended=True) and due("auto", seconds=420)
    assert due("auto", seconds=61, failure_interval=timedelta(minutes=30))
    assert not due("auto", seconds=58, failure_interval=1800)


def test_the_reason_says_what_was_measured_and_what_was_assumed():
    assert due("auto").reason == (
        "a backup costs 1 s and a failure comes every 86400 s (assumed): one every 415 s loses least "
        "(Young 1974, Daly 2006)"
    )
    assert "1800 s (given)" in due("auto", failure_interval=1800).reason
    assert due(7).reason == "10 updates since the last backup"


def test_the_best_interval_is_where_the_expected_time_is_least():
    """Daly's model of the whole run: failures come at random, each costs what was done since the last save."""
    for cost, between in ((1.0, ASSUMED), (30.0, 3600.0), (120.0, 1000.0)):
        intervals = np.linspace(cost, between, 100_001)
        wall = between * np.expm1((intervals + cost) / between) / intervals
        least = intervals[wall.argmin()]
        found = best_interval(cost, between)
        lost = between * math.expm1((found + cost) / between) / found / wall.min() - 1
        assert abs(found / least - 1) < 0.01 and lost < 1e-5
    assert best_interval(9.0, 4.0) == 9.0, "no more often than they can be written"


@pytest.mark.parametrize(
    "wrong", ["batch", "", 0, -3, True, 2.5, None, math.nan, timedelta(0), timedelta(seconds=-1), [5]]
)
def test_a_setting_outside_the_rule_is_quoted_with_the_next_line(wrong):
    with pytest.raises(SettingError, match="save_freq=") as error:
        Rhythm.of(wrong)
    assert repr(wrong) in str(error.value) and "next:     BackupAndRestore(" in str(error.value)


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan, True, "1h", timedelta(0)])
def test_a_failure_interval_is_a_time_above_zero(wrong):
    with pytest.raises(SettingError, match="failure_interval is a number of seconds"):
        Rhythm.of("auto", wrong)


def test_a_failure_interval_without_effect_warns():
    with pytest.warns(PhalanxWarning, match='an effect with save_freq="auto" only'):
        Rhythm.of("epoch", 3600)
