"""The gradient noise scale: from gradients of parts of a batch to the batch that is worth its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phalanx.errors import SettingError, message


def estimate(
    small_squared: float, big_squared: float, small_rows: float, big_rows: float
) -> tuple[float, float]:
    """Estimate the squared norm of the true gradient and the trace of the per-row covariance, without bias.

    Args:
        small_squared: Mean squared norm of gradients over `small_rows` rows each.
        big_squared: Squared norm of their mean, over `big_rows` rows.
        small_rows: Rows of one part.
        big_rows: Rows of all parts, more than `small_rows`.

    Returns:
        `(squared norm of the gradient, trace of the covariance)`; average each over many steps before
        their ratio is taken, for single values are noisy and may be negative.

    Example:
        >>> estimate(3.0, 1.5, 1, 4)   # |g|^2 + trace / rows is 3 at 1 row and 1.5 at 4
        (1.0, 2.0)

    References:
        McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1.
    """
    gradient = (big_rows * big_squared - small_rows * small_squared) / (big_rows - small_rows)
    trace = (small_squared - big_squared) / (1 / small_rows - 1 / big_rows)
    return gradient, trace


@dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """What a batch costs in steps and in rows at a noise scale.

    With noise scale `N`, training at batch `B` takes `1 + N / B` times the fewest steps and `1 + B / N`
    times the fewest rows.

    Args:
        batch: Rows of one update.
        noise_scale: The simple noise scale, in rows.

    Example:
        >>> t = Tradeoff(batch=100, noise_scale=300.0)
        >>> t.steps, round(t.rows, 2)
        (4.0, 1.33)

    References:
        McCandlish et al. 2018, equation 2.11.
    """

    batch: int
    noise_scale: float

    def __post_init__(self) -> None:
        scale = self.noise_scale
        if (
            isinstance(scale, bool)
            or not isinstance(scale, (int, float))
            or not 0 < scale < math.inf
            or self.batch < 1
        ):
            raise SettingError(
                message(
                    "A noise scale is a number of rows above 0.",
                    f"noise_scale={self.noise_scale!r}, batch={self.batch!r}",
                    "recipe.plan(strategy, optimizer='adam', noise_scale=900.0)",
                )
            )

    @property
    def steps(self) -> float:
        """Steps, as a multiple of the fewest possible."""
        return 1 + self.noise_scale / self.batch

    @property
    def rows(self) -> float:
        """Rows, as a multiple of the fewest possible."""
        return 1 + self.batch / self.noise_scale

    def __str__(self) -> str:
        double = Tradeoff(batch=2 * self.batch, noise_scale=self.noise_scale)
        worth = (
            "is worth it"
            if self.batch <= self.noise_scale
            else "is more than the noise scale: rows are spent for few steps saved"
        )
        return (
            f"A batch of {self.batch:,} {worth}: {self.steps:.3g} times the fewest steps, "
            f"{self.rows:.3g} times the fewest rows. Twice the batch: "
            f"{1 - double.steps / self.steps:.0%} fewer steps, {double.rows / self.rows - 1:.0%} more rows."
        )


class Average:
    """Exponential averages of both estimates, and their ratio.

    Args:
        decay: Weight that the average keeps, at least 0 and under 1.

    Example:
        >>> average = Average(0.9)
        >>> average.add(2.0, 600.0)
        >>> average.noise_scale
        300.0
    """

    def __init__(self, decay: float) -> None:
        if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
            raise SettingError(
                message(
                    "A decay is 0 or more and under 1.",
                    f"decay={decay!r}",
                    "phalanx.callbacks.GradientNoiseScale(decay=0.95)",
                )
            )
        self.decay = decay
        self.gradient, self.trace = 0.0, 0.0  # both want the same correction for their start at 0

    def add(self, gradient: float, trace: float) -> None:
        """Take in one pair of estimates; one that is not finite says nothing."""
        if math.isfinite(gradient) and math.isfinite(trace):
            self.gradient = self.decay * self.gradient + (1 - self.decay) * gradient
            self.trace = self.decay * self.trace + (1 - self.decay) * trace

    @property
    def noise_scale(self) -> float | None:
        """Trace over squared gradient, in rows; None while one of them is not above 0."""
        return self.trace / self.gradient if self.gradient > 0 and self.trace > 0 else None
