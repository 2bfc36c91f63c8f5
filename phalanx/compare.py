"""Two runs beside each other: where they differ first, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.errors import SettingError, message
from phalanx.text import table


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of one quantity after one step.

    Args:
        kind: `"log"` (loss or metric) or `"variable"`.
        name: Log name or variable path.
        step: Number of finished steps, from 1.
        size: Largest element of `|a - b| / max(1, |a|)`: absolute below 1, relative above.
    """

    kind: str
    name: str
    step: int
    size: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `verify` found; true in `if`, printable, and `equal` with any tolerance.

    Args:
        oracle: Description of the one-device side.
        candidate: Description of the side under test.
        differences: One per quantity and step, in the order of the run.
    """

    oracle: str
    candidate: str
    differences: tuple[Difference, ...]

    @property
    def steps(self) -> int:
        """Finished steps."""
        return max((d.step for d in self.differences), default=0)

    @property
    def largest(self) -> float:
        """The largest difference of all quantities and steps."""
        return max((d.size for d in self.differences), default=0.0)

    def by_name(self) -> dict[str, float]:
        """The largest difference of each loss, metric and variable, over all steps."""
        worst: dict[str, float] = {}
        for d in self.differences:
            worst[d.name] = max(worst.get(d.name, 0.0), d.size)
        return worst

    def equal(self, tolerance: float = 1e-5) -> bool:
        """True if nothing differs by more than `tolerance` (a NaN on one side differs)."""
        return self.first(tolerance) is None

    def first(self, tolerance: float = 1e-5) -> Difference | None:
        """The first quantity beyond the tolerance: the earliest step, and in it the largest difference."""
        if not tolerance >= 0:
            raise SettingError(
                message("A tolerance is zero or more.", f"tolerance={tolerance}", "report.equal(1e-5)")
            )
        beyond = [d for d in self.differences if not d.size <= tolerance]
        return min(beyond, key=lambda d: (d.step, -d.size), default=None)

    def __str__(self) -> str:
        kinds = {d.name: d.kind for d in self.differences}
        rows = [(kinds[name], name, f"{size:.1e}") for name, size in self.by_name().items()]
        first = self.first()
        verdict = (
            f"equal within 1e-05 over {self.steps} steps"
            if first is None
            else f"first difference beyond 1e-05: {first.name} after step {first.step} ({first.size:.1e})"
        )
        head = f"{self.candidate}\nagainst {self.oracle}: {verdict}"
        return f"{head}\n\n{table(('what', 'name', 'largest difference'), rows)}"


def difference(a: Any, b: Any) -> float:
    """Largest element of `|a - b| / max(1, |a|)`; infinite where shapes or NaNs disagree.

    Example:
        >>> difference([1.0, 200.0], [1.0, 201.0])
        0.005
    """
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if left.shape != right.shape:
        return float("inf")
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    finite = np.isfinite(left) & np.isfinite(right)
    with np.errstate(invalid="ignore"):
        gap = np.abs(left - right) / np.maximum(1.0, np.abs(left))
    return float(np.max(np.where(same, 0.0, np.where(finite, gap, np.inf)), initial=0.0))


def compare(step: int, kind: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Sequence[Difference]:
    """Compare two mappings of values by name; a name on one side alone differs without bound."""
    names = list(dict.fromkeys([*a, *b]))
    return [
        Difference(
            kind=kind,
            name=name,
            step=step,
            size=difference(a[name], b[name]) if name in a and name in b else float("inf"),
        )
        for name in names
    ]
