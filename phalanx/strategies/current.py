"""Which strategy is in force: the scopes of this thread, then Keras's own setting."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from phalanx.engine import keras as engine
from phalanx.errors import ScopeError, message

if TYPE_CHECKING:
    from phalanx.strategies.base import Strategy


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.entered: list[Strategy] = []
        self.outside: Any = None  # what Keras's distribution was before the first of them
        self.loops = 0  # loops of ours that run in this thread, and have set Keras's distribution themselves
        self.models: list[Any] = []  # the models that they train, outermost first


_scopes = _Scopes()


def entered() -> Strategy | None:
    """The strategy of the innermost scope, or None outside any."""
    return _scopes.entered[-1] if _scopes.entered else None


@contextlib.contextmanager
def loop(strategy: Any, model: Any) -> Iterator[bool]:
    """New variables follow the strategy while one of our loops runs; other models keep their own.

    Yields:
        True for the outermost loop of this model.
    """
    before = engine.current_distribution()
    engine.set_distribution(strategy)
    _scopes.loops += 1
    _scopes.models.append(model)
    try:
        yield not any(each is model for each in _scopes.models[:-1])
    finally:
        _scopes.models.pop()
        _scopes.loops -= 1
        engine.set_distribution(before)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Keras's own method of a model without a strategy, which a callback of our loop may call."""
    before = engine.current_distribution()
    if _scopes.loops:
        engine.set_distribution(None)
    try:
        yield
    finally:
        if _scopes.loops:
            engine.set_distribution(before)


def trains(model: Any) -> bool:
    """True while one of our loops runs this model in this thread."""
    return any(each is model for each in _scopes.models)


def in_loop() -> bool:
    """True while one of our loops runs in this thread."""
    return _scopes.loops > 0


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
    if not _scopes.entered:
        _scopes.outside = engine.current_distribution()
    _scopes.entered.append(strategy)
    engine.set_distribution(strategy)


def leave() -> None:
    """Leave a scope; which of several equal ones does not matter, so they may end in any order."""
    _scopes.entered.pop()
    engine.set_distribution(entered() or _scopes.outside)


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
