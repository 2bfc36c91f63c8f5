"""The environment: the only module that reads or writes it."""

from __future__ import annotations

import os


def read(name: str) -> str | None:
    """The value of a variable, or None if it is unset or empty."""
    return os.environ.get(name) or None


def snapshot() -> dict[str, str]:
    """All variables, as a copy."""
    return dict(os.environ)


def set_default(name: str, value: str) -> str:
    """Set a variable unless the user has set it.

    Args:
        name: The variable.
        value: Its value if it is unset or empty.

    Returns:
        The value in force.
    """
    if not os.environ.get(name):
        os.environ[name] = value
    return os.environ[name]


def write(name: str, value: str) -> None:
    """Set a variable, also over the user's value."""
    os.environ[name] = value
