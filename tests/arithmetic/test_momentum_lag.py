"""The numbers of decision 4: how far behind the printed rate momentum is during warmup."""

import pytest

from phalanx.scaling import warmup_multiplier


def effective_rates(momentum, factor, warmup, updates):
    """The rate that the velocity carries, by Keras's recursion with a gradient of one."""
    velocity, carried = 0.0, []
    for update in range(updates):
        rate = factor * warmup_multiplier(update, warmup, factor)  # base rate 1
        velocity = momentum * velocity + rate
        carried.append((rate, velocity * (1 - momentum) / (1 - momentum ** (update + 1))))
    return carried


def test_the_lag_is_small_on_the_safe_side_and_ends_with_the_warmup():
    carried = effective_rates(0.9, 4.0, 500, 700)
    lags = [rate - effective for rate, effective in carried]
    assert max(lags) <= 9 * 3 / 500 + 1e-9
    assert min(lags) >= -1e-9
    assert lags[-1] == pytest.approx(0, abs=1e-6)
