"""The noise scale's estimator and what it says about a batch."""

import numpy as np
import pytest

from phalanx.errors import SettingError
from phalanx.noise import Tradeoff, estimate


def test_the_estimator_has_no_bias():
    """Gradients with mean (3, 4) and covariance of trace 50: squared norm 25."""
    rng = np.random.default_rng(0)
    rows = np.array([3.0, 4.0]) + rng.normal(size=(20_000, 4, 8, 2)) * 5.0
    parts = rows.mean(axis=2)  # (trials, parts, 2)
    small = (parts**2).sum(-1).mean(-1)
    big = (parts.mean(1) ** 2).sum(-1)
    gradient, trace = np.mean([estimate(s, b, 8, 32) for s, b in zip(small, big)], axis=0)
    assert gradient == pytest.approx(25, rel=0.02)
    assert trace == pytest.approx(50, rel=0.02)


def test_at_the_noise_scale_steps_and_rows_are_both_twice_the_fewest():
    even = Tradeoff(batch=500, noise_scale=500.0)
    assert (even.steps, even.rows) == (2.0, 2.0)


def test_the_text_says_what_the_next_doubling_buys():
    text = str(Tradeoff(batch=256, noise_scale=900.0))
    assert "worth it" in text and "39% fewer steps" in text and "22% more rows" in text
    assert "more than the noise scale" in str(Tradeoff(batch=2048, noise_scale=900.0))


@pytest.mark.parametrize("scale", [0.0, -3.0, float("nan")])
def test_a_noise_scale_is_above_zero(scale):
    with pytest.raises(SettingError, match="noise_scale"):
        Tradeoff(batch=64, noise_scale=scale)
