"""Which strategy is in force: the scopes of this thread, then Keras's own setting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from phalanx.engine import keras as engine
from phalanx.errors import ScopeError, message

if TYPE_CHECKING:
    from phalanx.strategies.base import Strategy


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.entered: list[Strategy] = []


_scopes = _Scopes()


def entered() -> Strategy | None:
    """The strategy of the innermost scope, or None outside any."""
    return _scopes.entered[-1] if _scopes.entered else None


def enter(strategy: Strategy) -> None:
    """Enter a scope; the same strategy may be entered again, another may not.

    Raises:
        ScopeError: A scope of another strategy, or of a Keras distribution, is open.
    """
    outer = entered() or engine.current_distribution()
    if outer is not None and outer is not strategy:
        raise ScopeError(
            message(
                "A scope may hold its own strategy again, not a different one.",
                f"{strategy!r} inside the scope of {outer!r}",
                "with strategy.scope(): ...   # leave the outer scope first",
            )
        )
    _scopes.entered.append(strategy)


def leave() -> None:
    """Leave the innermost scope."""
    _scopes.entered.pop()


def hold() -> None:
    """Put the scope's strategy back in force if `keras.utils.clear_session` dropped it.

    Raises:
        ScopeError: Another distribution has been set inside the scope.
    """
    strategy = entered()
    if strategy is None:
        return
    found = engine.current_distribution()
    if found is None:
        engine.set_distribution(strategy)
    elif found is not strategy:
        raise ScopeError(
            message(
                "Inside a strategy's scope, models follow that strategy.",
                f"{found!r} was set inside the scope of {strategy!r}",
                "keras.distribution.set_distribution(None)   # or leave the scope first",
            )
        )
