"""The benchmark's numbers, what was promised of them, and how they print; no JAX here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

HAND, PHALANX, KERAS = "hand-written", "phalanx", "keras"
WITH_BAR = " + bar"

Memory = dict[str, dict[str, list[float]]]  # contender -> kind -> MiB, one number per process


@dataclass(frozen=True)
class Ratio:
    """Rounds of one contender over another's: the median, the quartiles and the error of the median."""

    median: float
    low: float
    high: float
    error: float | None

    def __str__(self) -> str:
        """Median, and in brackets the quartiles."""
        return f"{self.median:.3f} ({self.low:.2f}-{self.high:.2f})"


def ratio_of(rounds: Sequence[float]) -> Ratio:
    """Sum up one number per round.

    Args:
        rounds: The ratio in each round.

    Returns:
        Median and quartiles, and the median's standard error as the quartiles suggest it for normal noise:
        1.25 x (high - low) / 1.35 / sqrt(rounds); None for fewer than three rounds, which cannot tell.

    Example:
        >>> print(ratio_of([0.9, 1.0, 1.1]))
        1.000 (0.95-1.05)
    """
    if len(rounds) < 3:
        return Ratio(median(rounds), min(rounds), max(rounds), None)
    low, _, high = quantiles(rounds, n=4, method="inclusive")
    return Ratio(median(rounds), low, high, 1.25 * (high - low) / 1.35 / len(rounds) ** 0.5)


@dataclass(frozen=True)
class Timing:
    """What was measured for one network.

    Attributes:
        model: Name of the network.
        batch: Rows of one step over all replicas.
        steps: Steps of one turn, a whole number of epochs.
        ms_per_step: By contender, one number per round, in the order of the rounds.
        others_cpu: Share of the machine's CPU time that other processes used meanwhile; None if unknown.
    """

    model: str
    batch: int
    steps: int
    ms_per_step: dict[str, list[float]]
    others_cpu: float | None

    def speed(self, name: str, than: str) -> Ratio:
        """Compare the throughput of two contenders, each round with itself.

        Args:
            name: The contender asked about.
            than: The one it is held against.

        Returns:
            time(than) / time(name): over 1 means that `name` is faster.

        Example:
            >>> Timing("mlp", 128, 100, {"a": [2.0, 2.0], "b": [1.0, 3.0]}, None).speed("a", than="b").median
            1.0
        """
        pairs = zip(self.ms_per_step[than], self.ms_per_step[name], strict=True)
        return ratio_of([theirs / ours for theirs, ours in pairs])


@dataclass(frozen=True)
class Goal:
    """One number that was promised, and what was measured.

    Attributes:
        what: The number.
        measured: Its value here; the verdict goes by this alone.
        error: Standard error of that value; None if too few rounds were measured to tell.
        bound: What was promised.
        at_least: True if more is better.
    """

    what: str
    measured: float
    error: float | None
    bound: float
    at_least: bool

    @property
    def met(self) -> bool:
        """True if the promise holds."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def goals(timings: Sequence[Timing], memory: dict[str, Memory]) -> list[Goal]:
    """Hold the measurements against the bars of the project.

    Args:
        timings: One per network.
        memory: Peak memory by network.

    Returns:
        On the transformer at least 0.95 of the hand-written loop's throughput; on every network at least
        the throughput of Keras's `fit`, and no more than 1.05 of its peak memory.
    """
    found = []
    for timing in timings:
        if timing.model == "transformer":
            speed = timing.speed(PHALANX, than=HAND)
            found.append(
                Goal("transformer: throughput / hand-written", speed.median, speed.error, 0.95, True)
            )
    for timing in timings:
        speed = timing.speed(PHALANX, than=KERAS)
        found.append(Goal(f"{timing.model}: throughput / keras", speed.median, speed.error, 1.0, True))
    for model, used in memory.items():
        for kind in used[PHALANX]:
            ratio = memory_ratio(used, kind)
            found.append(Goal(f"{model}: memory {kind} / keras", ratio.median, ratio.error, 1.05, False))
    return found


def memory_ratio(used: Memory, kind: str) -> Ratio:
    """Compare peak memory: each process of Phalanx's with Keras's median, Keras's spread in the error."""
    theirs = ratio_of(used[KERAS][kind])
    ours = ratio_of([size / theirs.median for size in used[PHALANX][kind]])
    if ours.error is None or theirs.error is None:
        return ours
    error = ours.median * ((ours.error / ours.median) ** 2 + (theirs.error / theirs.median) ** 2) ** 0.5
    return replace(ours, error=error)


def report(
    about: dict[str, Any], timings: Sequence[Timing], memory: dict[str, Memory], checks: Sequence[Goal]
) -> str:
    """Lay everything out as text."""
    parts = ["\n".join(f"{name:12} {value}" for name, value in about.items()), _speeds(timings)]
    if memory:
        parts.append(_memory(memory))
    rows = [
        [
            goal.what,
            f"{goal.measured:.3f}",
            "?" if goal.error is None else f"{goal.error:.3f}",
            f"{'>=' if goal.at_least else '<='} {goal.bound:.2f}",
            "met" if goal.met else "missed",
        ]
        for goal in checks
    ]
    parts.append(table(["goal", "measured", "+-", "bar", "verdict"], rows))
    if any((timing.others_cpu or 0) > 0.05 for timing in timings):
        parts.append("Other processes took over 5 % of the CPU meanwhile: rerun on a quiet machine.")
    return "\n\n".join(parts)


def _speeds(timings: Sequence[Timing]) -> str:
    names = list(timings[0].ms_per_step)
    times = [
        [timing.model, str(timing.batch), str(timing.steps)]
        + [f"{median(timing.ms_per_step[name]):.2f}" for name in names]
        + ["?" if timing.others_cpu is None else f"{timing.others_cpu:.0%}"]
        for timing in timings
    ]
    pairs = [
        (PHALANX, HAND),
        (PHALANX, KERAS),
        (PHALANX + WITH_BAR, HAND),
        (PHALANX + WITH_BAR, KERAS + WITH_BAR),
    ]
    ratios = [[timing.model, *(str(timing.speed(*pair)) for pair in pairs)] for timing in timings]
    return (
        "Milliseconds per step, median over the rounds ('+ bar' draws the progress bar, the rest is silent)\n"
        + table(["model", "batch", "steps", *names, "other CPU use"], times)
        + "\n\nThroughput as a multiple, median over the rounds and quartiles (over 1: the first is faster)\n"
        + table(["model", *(f"{name} / {than}" for name, than in pairs)], ratios)
    )


def _memory(memory: dict[str, Memory]) -> str:
    rows = []
    for model, used in memory.items():
        for kind, ours in used[PHALANX].items():
            sizes = [f"{median(ours):.0f}", f"{median(used[KERAS][kind]):.0f}"]
            rows.append([model, kind, *sizes, str(memory_ratio(used, kind))])
    return "Peak memory that fit adds to its process, MiB (median of fresh processes)\n" + table(
        ["model", "while", PHALANX, KERAS, "ratio"], rows
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    """Align columns, the first to the left and the others to the right.

    Example:
        >>> print(table(["model", "ms"], [["mlp", "1.25"], ["cnn", "10.50"]]))
        model     ms
        -----  -----
        mlp     1.25
        cnn    10.50
    """
    lines = [head, ["-" * max(map(len, column)) for column in zip(head, *rows, strict=True)], *rows]
    first, *others = (len(dashes) for dashes in lines[1])
    return "\n".join(
        "  ".join(
            [row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))]
        )
        for row in lines
    )
