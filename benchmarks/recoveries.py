"""What followed each fault of a run: how long until all was as before it, and what that was spent on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from phalanx.text import table

PARTS = ("notice", "restart", "restore", "compile", "replay")
"""From the fault to the launcher's word; to the first line of training in the new process; to its first step,
all values being back; to the end of that step, compiled or read from the cache; to the step of the fault."""


@dataclass(frozen=True)
class Recovery:
    """One fault and what followed.

    Attributes:
        what: The kind of fault.
        seconds: By part of the recovery; parts that the next fault cut short are missing.
    """

    what: str
    seconds: Mapping[str, float]

    @property
    def whole(self) -> bool:
        """The run was where it had been before the next fault came."""
        return len(self.seconds) == len(PARTS)

    @property
    def total(self) -> float:
        """Seconds from the fault until all was as before."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Run:
    """A run under faults.

    Attributes:
        recoveries: One for each fault that happened.
        steps: Training steps of the run.
        repeated: Steps that were done again.
        right: It ended with the numbers of the undisturbed run; None where it did not end well.
    """

    recoveries: Sequence[Recovery]
    steps: int
    repeated: int
    right: bool | None


def recoveries(
    faults: Sequence[Mapping[str, Any]], restarts: Sequence[float], events: Sequence[Mapping[str, Any]]
) -> list[Recovery]:
    """Find what followed each fault.

    Args:
        faults: What the notes say of each: "at" in seconds, "step", "what".
        restarts: When the launcher said that all start again.
        events: The chief's notes: "at", "what" (`"begin"`, `"first"` or `"step"`), "step".

    Returns:
        One for each fault, in the order of time.

    Example:
        >>> events = [{"at": at, "what": what, "step": step} for at, what, step in
        ...           [(5, "begin", 0), (6, "first", 3), (8, "step", 3), (9, "step", 4)]]
        >>> recoveries([{"at": 1, "step": 4, "what": "kill"}], [2], events)[0].seconds
        {'notice': 1, 'restart': 3, 'restore': 1, 'compile': 2, 'replay': 1}
    """
    faults = sorted(faults, key=lambda fault: fault["at"])
    ends = [*(fault["at"] for fault in faults[1:]), float("inf")]
    found = []
    for fault, until in zip(faults, ends, strict=False):  # there may be no fault
        at, seconds = fault["at"], {}
        for part, moments in zip(PARTS, _moments(fault, restarts, events), strict=True):
            after = min((each for each in moments if each >= at), default=None)
            if after is None or after > until:
                break
            seconds[part], at = after - at, after
        found.append(Recovery(fault["what"], seconds))
    return found


def _moments(
    fault: Mapping[str, Any], restarts: Sequence[float], events: Sequence[Mapping[str, Any]]
) -> list[list[float]]:
    """When each part of a recovery can end."""

    def of(what: str, step: int = 0) -> list[float]:
        return [event["at"] for event in events if event["what"] == what and event["step"] >= step]

    return [list(restarts), of("begin"), of("first"), of("step"), of("step", fault["step"])]


def repeated(events: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Steps of a run, and how many were done again.

    Example:
        >>> repeated([{"what": "step", "step": step} for step in (1, 2, 3, 2, 3, 4)])
        (4, 2)
    """
    steps = [event["step"] for event in events if event["what"] == "step"]
    return len(set(steps)), len(steps) - len(set(steps))


def report(runs: Sequence[Run]) -> str:
    """The table: mean seconds by kind of fault, and what became of the numbers."""
    every = [each for run in runs for each in run.recoveries]
    kinds = [*sorted({each.what for each in every}), "all"]
    lines = []
    for kind in kinds:
        of_kind = [each for each in every if kind in (each.what, "all")]
        whole = [each for each in of_kind if each.whole]
        means = [f"{fmean(each.seconds[part] for each in whole):.2f}" if whole else "" for part in PARTS]
        total = f"{fmean(each.total for each in whole):.2f}" if whole else ""
        lines.append((kind, len(of_kind), len(whole), *means, total))
    steps, again = sum(run.steps for run in runs), sum(run.repeated for run in runs)
    ended = sum(run.right is not None for run in runs)
    wrong = sum(run.right is False for run in runs)
    return "\n".join(
        [
            table(("fault", "count", "measured", *PARTS, "seconds in all"), lines, align="l" + "r" * 8),
            "",
            f"faults {len(every)}; runs {len(runs)}, of which {ended} came to their end; "
            f"steps done again {again} of {steps} ({again / max(steps, 1):.0%}); wrong results {wrong}",
        ]
    )
