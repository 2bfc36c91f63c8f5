"""When a backup is due: from what has passed since the last one, with the reason as a sentence."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from phalanx.errors import SettingError, message, warn
from phalanx.text import many, quote

ASSUMED = 86_400.0
"""Seconds from one failure to the next, where nobody says: a day."""

_UNTIL_COST = 60.0  # seconds until the first save of "auto", which tells what a save costs
_PASTE = 'BackupAndRestore(folder, save_freq="auto")   # or "epoch", 500 updates, timedelta(minutes=10)'


@dataclass(frozen=True)
class Due:
    """Whether a backup is due, and why.

    Args:
        yes: It is.
        reason: One sentence.

    Example:
        >>> bool(Due(True, "the epoch ended"))
        True
    """

    yes: bool
    reason: str

    def __bool__(self) -> bool:
        return self.yes


@dataclass(frozen=True)
class Rhythm:
    """How often backups are written; made by `Rhythm.of`.

    Args:
        updates: Training steps from one to the next, if they are counted.
        seconds: Seconds from one to the next, if time counts.
        failure_interval: Seconds from one failure to the next, if the best interval is to be found.
        assumed: Nobody gave that number.
    """

    updates: int | None = None
    seconds: float | None = None
    failure_interval: float | None = None
    assumed: bool = False

    @classmethod
    def of(cls, save_freq: Any, failure_interval: Any = None) -> Rhythm:
        """Read the user's setting.

        Args:
            save_freq: `"epoch"`, a number of training steps, a `datetime.timedelta`, or `"auto"`.
            failure_interval: For `"auto"`: the time from one failure to the next, seconds or a `timedelta`.

        Returns:
            The rhythm.

        Raises:
            SettingError: Something else, or a number that is not above 0.

        Example:
            >>> Rhythm.of(500).due(500, 12.0, False, None)
            Due(yes=True, reason='500 updates since the last backup')
        """
        if isinstance(save_freq, str) and save_freq == "auto":
            if failure_interval is None:
                return cls(failure_interval=ASSUMED, assumed=True)
            return cls(failure_interval=_seconds(failure_interval, "failure_interval"))
        if failure_interval is not None:
            warn(
                message(
                    'failure_interval has an effect with save_freq="auto" only.',
                    f"failure_interval={quote(failure_interval)} with save_freq={quote(save_freq)}",
                    _PASTE,
                )
            )
        if isinstance(save_freq, str):
            if save_freq != "epoch":
                raise _bad("save_freq", save_freq)
            return cls()
        if isinstance(save_freq, timedelta):
            return cls(seconds=_seconds(save_freq, "save_freq"))
        return cls(updates=_whole(save_freq))

    def due(self, updates: int, seconds: float, epoch_ended: bool, cost: float | None) -> Due:
        """Decide whether a backup is due now.

        Args:
            updates: Training steps since the last backup, or since the start where there is none.
            seconds: Seconds since then.
            epoch_ended: An epoch has just ended.
            cost: Seconds that the last backup took; None before the first.

        Returns:
            The decision. Without a step since the last backup none is due.
        """
        if not updates:
            return Due(False, "nothing was trained since the last backup")
        if self.updates is not None:
            return Due(updates >= self.updates, f"{many(updates, 'update')} since the last backup")
        if self.seconds is not None:
            return Due(seconds >= self.seconds, f"{seconds:.0f} s since the last backup")
        if self.failure_interval is None:
            return Due(epoch_ended, "the epoch ended" if epoch_ended else "the epoch goes on")
        if cost is None:
            now = epoch_ended or seconds >= _UNTIL_COST
            return Due(now, "the first backup tells what one costs")
        interval = best_interval(cost, self.failure_interval)
        who = "assumed" if self.assumed else "given"
        return Due(
            seconds >= interval,
            f"a backup costs {cost:.3g} s and a failure comes every {self.failure_interval:.6g} s ({who}): "
            f"one every {interval:.3g} s loses least (Young 1974, Daly 2006)",
        )


def best_interval(cost: float, failure_interval: float) -> float:
    """Seconds between backups that lose the least time, to saving and to work done again.

    Young: `sqrt(2 C M)`, for a cost C far below the time M between failures. Daly's higher order adds
    `1 + sqrt(C / 2M) / 3 + C / 2M / 9` as a factor, less C, and M itself where C is 2 M or more. A backup is
    written beside the training, so the interval is never below its cost.

    Args:
        cost: Seconds that a backup takes.
        failure_interval: Seconds from one failure to the next.

    Returns:
        Seconds.

    Example:
        >>> round(best_interval(2.0, 86_400.0))
        587

    References:
        J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
        J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
        Generation Computer Systems 22(3), 2006.
    """
    ratio = cost / (2 * failure_interval)
    if ratio >= 1:
        return max(cost, failure_interval)
    factor = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return max(cost, math.sqrt(2 * cost * failure_interval) * factor - cost)


def _whole(value: Any) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < 1:
        raise _bad("save_freq", value)
    return number


def _seconds(value: Any, name: str) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
        raise _bad(name, value)
    return float(number)


def _bad(name: str, value: Any) -> SettingError:
    rule = (
        'save_freq is "epoch", "auto", a number of training steps or a timedelta, each above 0.'
        if name == "save_freq"
        else "failure_interval is a number of seconds or a timedelta, above 0."
    )
    return SettingError(message(rule, f"{name}={quote(value)}", _PASTE))
