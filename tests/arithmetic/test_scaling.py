"""Scaling rules: factors, moments, warmup, and where they stop being good advice."""

import dataclasses

import pytest

from phalanx import scaling
from phalanx.errors import SettingError

NUMBERS = scaling.Numbers(
    rule="linear",
    view="global",
    replicas=4,
    batch_per_replica=16,
    global_batch=64,
    update_batch=64,
    factor=4.0,
    warmup_steps=5,
    total_updates=1000,
    dataset_size=10_000,
    smallest_busy_batch=None,
    moments={},
)


def judged(**changes):
    return scaling.judge(dataclasses.replace(NUMBERS, **changes))


@pytest.mark.parametrize(
    ("rule", "factor", "wanted"),
    [("linear", 8, 8), ("sqrt", 16, 4), ("none", 8, 1), ("linear", 0.5, 0.5), ("sqrt", 0.25, 0.5)],
)
def test_the_rate_follows_the_batch_by_its_rule(rule, factor, wanted):
    assert scaling.choose_rule(rule, ["SGD"]).rate_factor(factor) == wanted


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        ("SGD", "linear"),
        ("Adam", "sqrt"),
        ("AdamW", "sqrt"),
        ("Nadam", "sqrt"),
        ("RMSprop", "sqrt"),
        ("Lamb", "sqrt"),
        ("LARS", "linear"),
    ],
)
def test_auto_is_linear_for_sgd_and_square_root_for_the_adam_family(optimizer, rule):
    chosen = scaling.choose_rule("auto", [optimizer])
    assert chosen.name == rule
    assert chosen.reference


def test_auto_finds_a_subclass_by_the_nearest_base_that_it_knows():
    assert scaling.choose_rule("auto", ["Mine", "AdamW", "Adam", "Optimizer"]).name == "sqrt"


@pytest.mark.parametrize("optimizer", ["Ftrl", "Lion", "Adadelta"])
def test_auto_refuses_an_optimizer_that_it_does_not_know_and_takes_it_with_a_rule(optimizer):
    with pytest.raises(SettingError, match=rf"(?s)adam.*lamb.*sgd.*'{optimizer}'.*rule=\"sqrt\""):
        scaling.choose_rule("auto", [optimizer])
    assert scaling.choose_rule("sqrt", [optimizer]).reference == scaling.KRIZHEVSKY


def test_a_rule_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(SettingError, match="(?s)'auto', 'linear', 'sqrt', 'none'.*rule='square'"):
        scaling.choose_rule("square", ["SGD"])


def test_warmup_rises_from_the_base_rate_to_the_scaled_one_update_by_update():
    """Reports, row 17: base rate 0.1 at 32 rows, 128 rows on four replicas, five updates of warmup."""
    rates = [0.4 * scaling.warmup_multiplier(u, 5, 4.0) for u in range(8)]
    assert rates == pytest.approx([0.1, 0.16, 0.22, 0.28, 0.34, 0.4, 0.4, 0.4], abs=1e-12)
    rates = [0.2 * scaling.warmup_multiplier(u, 5, 2.0) for u in (0, 5)]
    assert rates == pytest.approx([0.1, 0.2], abs=1e-12)


@pytest.mark.parametrize(("steps", "factor"), [(0, 4.0), (5, 1.0), (5, 0.5)])
def test_without_steps_or_without_growth_there_is_nothing_to_warm_up(steps, factor):
    assert [scaling.warmup_multiplier(u, steps, factor) for u in (0, 3, 9)] == [1, 1, 1]


def test_decays_keep_the_number_of_rows_that_they_average_over():
    """An average of decay b spans 1 / (1 - b) updates: four times the rows, a quarter of the updates."""
    for name, decay in [("beta_1", 0.9), ("beta_2", 0.999), ("rho", 0.95)]:
        scaled, _ = scaling.scale_moment(name, decay, 4)
        assert 4 / (1 - scaled) == pytest.approx(1 / (1 - decay))


def test_epsilon_shrinks_with_the_root_of_the_batch():
    assert scaling.scale_moment("epsilon", 1e-7, 4)[0] == pytest.approx(5e-8)


def test_a_decay_never_falls_under_zero():
    scaled, how = scaling.scale_moment("beta_1", 0.9, 16)
    assert scaled == 0.0
    assert "at least 0" in how


def test_good_numbers_have_no_warning():
    assert judged() == []


def test_few_rows_per_statistic_warn_in_the_replica_view_alone():
    (sentence,) = judged(view="replica")
    assert "16 rows" in sentence and "32" in sentence and "64 rows" in sentence
    assert judged(view="replica", batch_per_replica=32) == []
    assert judged(view="replica", replicas=1) == []


def test_the_linear_rule_warns_past_8192_rows():
    (sentence,) = judged(update_batch=8193, dataset_size=None)
    assert "8,192" in sentence and "8,193" in sentence
    assert judged(update_batch=8192) == []
    assert judged(update_batch=8193, rule="sqrt") == []


def test_a_warmup_longer_than_a_tenth_of_training_warns():
    (sentence,) = judged(warmup_steps=101)
    assert "101 of 1,000" in sentence and "10%" in sentence
    assert judged(warmup_steps=100) == []
    assert judged(warmup_steps=101, total_updates=None) == []


def test_a_batch_larger_than_the_data_warns():
    (sentence,) = judged(update_batch=65, dataset_size=64)
    assert "65" in sentence and "64" in sentence
    assert judged(update_batch=64, dataset_size=64) == []


def test_a_share_that_leaves_the_device_idle_warns_where_that_was_measured():
    (sentence,) = judged(smallest_busy_batch=17)
    assert "16 rows" in sentence and "17" in sentence
    assert judged(smallest_busy_batch=16) == []


def test_the_square_root_rule_warns_where_a_decay_would_have_to_be_negative():
    (sentence,) = judged(factor=16.0, rule="sqrt", moments={"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7})
    assert "beta_1 = 1 - 16 x (1 - 0.9)" in sentence and "10 times" in sentence
