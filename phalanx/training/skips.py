"""Steps that a loss scale skips: counted along with the steps, watched over a `fit`."""

from __future__ import annotations

from typing import Any

from phalanx import precision
from phalanx.errors import warn
from phalanx.finite_step import LOSS_SCALE, SKIPPED, CountedStep
from phalanx.rows import Rows

NAMES = (LOSS_SCALE, SKIPPED)


class Counted:
    """A step that carries the counts of one epoch from call to call.

    Args:
        step: The compiled step, see `finite_step.guard`.
        counts: The counts to start with, on the devices.
    """

    def __init__(self, step: CountedStep, counts: Any) -> None:
        self.step, self.counts = step, counts

    def __call__(self, state: Any, batch: Any, rows: Rows) -> tuple[Any, Any]:
        """Run one step; the numbers that `Skips` will look at start on their way to the host."""
        logs, state, self.counts = self.step(state, self.counts, batch, rows)
        if isinstance(logs, dict):
            for name in NAMES:
                logs[name].copy_to_host_async()
        return logs, state


class Skips:
    """Looks at the logs of finished steps, in order, and warns once when the loss scale has gone too far."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._warned = False
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Start counting anew; a row of skipped steps goes on from the epoch before."""
        self._steps = self._skipped = 0

    def get_state(self) -> list[int]:
        """What a run that goes on elsewhere must know."""
        return [self._in_a_row, int(self._warned), self._steps, self._skipped]

    def set_state(self, state: list[int]) -> None:
        """Go on from `get_state`."""
        self._in_a_row, warned, self._steps, self._skipped = map(int, state)
        self._warned = bool(warned)

    @property
    def nothing_finite(self) -> bool:
        """True if every step of this epoch so far was skipped."""
        return 0 < self._steps == self._skipped

    def look(self, logs: Any) -> None:
        """Take the logs of a finished step: nothing waits here."""
        if not isinstance(logs, dict) or SKIPPED not in logs:
            return
        skipped, scale = int(logs[SKIPPED]), float(logs[LOSS_SCALE])
        self._in_a_row = self._in_a_row + 1 if skipped > self._skipped else 0
        self._steps, self._skipped = self._steps + 1, skipped
        reason = precision.trouble(self._in_a_row, scale)
        if reason and not self._warned:
            self._warned = True
            warn(precision.trouble_text(reason))


def taken_out(logs: Any) -> tuple[Any, dict[str, Any]]:
    """Logs as Keras's own step gives them, and what was added to them here."""
    if not isinstance(logs, dict) or SKIPPED not in logs:
        return logs, {}
    own = {name: value for name, value in logs.items() if name not in NAMES}
    return own, {name: logs[name] for name in NAMES}
