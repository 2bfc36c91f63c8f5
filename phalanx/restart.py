"""Whether workers that ended start again: a policy, with the reason as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.errors import SettingError, message
from phalanx.text import many

PREEMPTED = 75
"""A worker that leaves with this code was asked to go and may start again.

It is `EX_TEMPFAIL` of `sysexits.h`, "the user is invited to retry", and nothing else gives it: no signal (128
and more), no shell (126, 127), no exception that nobody caught (1), no bad usage (2, 64).
"""

LOST = 76
"""A worker that leaves with this code ends because another one is lost: it is not the one to blame."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How often and how fast workers start again.

    Args:
        max_restarts: Failures after which they start again; 0 never starts anything again.
        backoff: Seconds before the first restart; twice as long before each that follows.
        longest: Seconds that no back-off exceeds.
        short: A run of fewer seconds got nowhere, unless a backup became complete in it.
        loop: So many short runs in a row are a crash loop.

    Raises:
        SettingError: A number outside its rule.
    """

    max_restarts: int = 0
    backoff: float = 1.0
    longest: float = 60.0
    short: float = 30.0
    loop: int = 3

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.loop < 2 or min(self.backoff, self.longest, self.short) < 0:
            raise SettingError(
                message(
                    "Restarts and seconds are 0 or more, and a loop has two runs or more.",
                    f"{self}",
                    "Policy(max_restarts=3)",
                )
            )


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a run of all workers came to its end, or one worker of it.

    Args:
        code: Exit code of the worker that decides: the first that failed; 0 if none did.
        who: That worker, as text.
        how: What it did, as text: `"left with code 3"`.
        started: When the run started, seconds of any clock that only goes forward.
        ended: When that worker ended.
        running: Workers that still run and were not asked to end.
        told: The signal that told the launcher to end, if one did.
        port_taken: The port that another program took before the worker could, if that is why it failed.
        saved: Backups that became complete during the run, as far as is known.
    """

    code: int
    who: str = "a worker"
    how: str = "failed"
    started: float = 0.0
    ended: float = 0.0
    running: int = 0
    told: str | None = None
    port_taken: int | None = None
    saved: int = 0

    @property
    def seconds(self) -> float:
        """How long the run lasted."""
        return self.ended - self.started


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Args:
        action: `"wait"` for the workers that still run, `"restart"` all, or `"stop"`.
        delay: Seconds from now until a restart.
        reason: One sentence.
    """

    action: Literal["wait", "restart", "stop"]
    delay: float
    reason: str


def decide(history: Sequence[Exit], exit: Exit, now: float, policy: Policy) -> Decision:
    """Decide what follows the end of a worker or of a run.

    Args:
        history: Ends of the earlier runs, oldest first.
        exit: The end to decide about.
        now: The time, on the clock of `exit`; time that has passed since the end counts as back-off.
        policy: The rules.

    Returns:
        The decision.

    Example:
        >>> failed = Exit(code=3, who="worker 1", how="left with code 3", started=0, ended=100)
        >>> decide([], failed, 100.25, Policy(max_restarts=2))
        Decision(action='restart', delay=0.75, reason='worker 1 left with code 3: restart 1 of 2')
        >>> decide([], failed, 100, Policy()).reason
        'worker 1 left with code 3'
    """
    what = f"{exit.who} {exit.how}"
    if exit.told is not None:
        return Decision("stop", 0.0, f"{exit.told} ends the run and never restarts it")
    if exit.code == 0:
        if exit.running:
            return Decision("wait", 0.0, f"{exit.who} is done; {many(exit.running, 'worker')} to wait for")
        return Decision("stop", 0.0, "all workers are done")
    streak = _streak([*history, exit], policy.short)
    if exit.port_taken is not None and len(streak) < policy.loop:
        return Decision(
            "restart", 0.0, f"another program took port {exit.port_taken}: new ports, not counted"
        )
    if not policy.max_restarts:
        return Decision("stop", 0.0, what)
    if len(streak) >= policy.loop:
        lasted = ", ".join(f"{each.seconds:.1f} s" for each in streak)
        return Decision(
            "stop",
            0.0,
            f"{what}; a crash loop: {len(streak)} runs in a row ended early ({lasted}), "
            "and another would, too",
        )
    if exit.code == PREEMPTED:
        delay = _delay(len(streak), exit, now, policy)
        return Decision("restart", delay, f"{what}, which means preempted: restart, not counted")
    failures = 1 + sum(_counts(each) for each in history)
    if failures > policy.max_restarts:
        return Decision("stop", 0.0, f"{what}; {many(policy.max_restarts, 'restart')} used up")
    delay = _delay(failures, exit, now, policy)
    return Decision("restart", delay, f"{what}: restart {failures} of {policy.max_restarts}")


def _counts(exit: Exit) -> bool:
    return exit.code not in (0, PREEMPTED) and exit.port_taken is None


def _streak(ends: Sequence[Exit], short: float) -> list[Exit]:
    """The runs at the end of the list that got nowhere.

    A preempted one is as short as a failed one; one that has saved something got on, however short it was.
    """
    streak: list[Exit] = []
    for each in reversed(ends):
        if each.seconds >= short or each.saved:
            break
        streak.insert(0, each)
    return streak


def _delay(times: int, exit: Exit, now: float, policy: Policy) -> float:
    backoff = min(policy.longest, policy.backoff * 2.0 ** min(max(times, 1) - 1, 32))
    return max(0.0, exit.ended + backoff - now)
