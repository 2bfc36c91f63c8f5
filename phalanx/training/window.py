"""A bounded number of steps in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import jax

from phalanx.engine import arrays


class Window:
    """Waits for old steps, so that at most `depth` dispatched ones are unfinished when the next is sent.

    Args:
        depth: Steps that may be unfinished; see `engine.devices.steps_in_flight`.
        finished: Called with the results of each step that was waited for, in order.
    """

    def __init__(self, depth: int, finished: Callable[[Any], None] | None = None) -> None:
        self.depth, self.finished = depth, finished
        self._pending: deque[Any] = deque()

    def push(self, results: Any, state: Any) -> None:
        """Add a dispatched step and wait until few enough are unfinished.

        Args:
            results: What the step returned to keep (logs or outputs).
            state: What it returned to carry on; waited for only if there are no results.
        """
        leaves = jax.tree.leaves(results)
        if not leaves:
            arrays.wait(state)
            return
        self._pending.append((leaves[0], results if self.finished else None))
        while len(self._pending) > self.depth:
            self._wait()

    def drain(self) -> None:
        """Wait for all steps."""
        while self._pending:
            self._wait()

    def _wait(self) -> None:
        leaf, results = self._pending.popleft()
        arrays.wait(leaf)
        if self.finished:
            self.finished(results)
