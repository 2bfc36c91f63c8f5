"""Every exception and warning that Phalanx raises, family tree on top.

    PhalanxError
    ├── UserError (ValueError) ......... what was asked for cannot be done as asked
    │   ├── CheckpointError ............ a backup that cannot be written, read, or used for this model
    │   ├── ClusterError ............... who takes part in a run, and where they are
    │   ├── DeviceError ................ names, counts and kinds of devices
    │   ├── DataError .................. rows, columns, lengths, dtypes of the data
    │   ├── SettingError ............... a number or option outside its rule
    │   └── UnsupportedError ........... a combination that Phalanx refuses rather than gets wrong
    ├── ScopeError (RuntimeError) ...... scopes, strategies and the order of things
    ├── EngineError (RuntimeError) ..... Keras or JAX is not one that Phalanx understands
    └── WorkerLost (RuntimeError) ...... another worker is gone, or does not answer
    ColumnError (DataError, TypeError)   a column that has no numbers in it

    PhalanxWarning (UserWarning) ....... it goes on, but not as you may think

Every text has three parts: the rule, what was received, the next line to paste.
"""

from __future__ import annotations

import sys
import warnings


class PhalanxError(Exception):
    """Root of every error that Phalanx raises on purpose."""


class UserError(PhalanxError, ValueError):
    """What was asked for cannot be done as asked."""


class CheckpointError(UserError):
    """A backup that cannot be written, read, or used for this model."""


class ClusterError(UserError):
    """An environment that describes no cluster in which every worker can find every other."""


class DeviceError(UserError):
    """A device name, count or kind that this machine does not have."""


class DataError(UserError):
    """Data whose rows, columns or lengths do not fit together."""


class ColumnError(DataError, TypeError):
    """A column that cannot go to a device, because it does not hold numbers."""


class SettingError(UserError):
    """A number or option outside the rule that it must obey."""


class UnsupportedError(UserError):
    """A combination that Phalanx refuses rather than computes wrongly."""


class ScopeError(PhalanxError, RuntimeError):
    """Strategies, scopes or starts in an order that cannot work."""


class EngineError(PhalanxError, RuntimeError):
    """The Keras or JAX that was found is not one that Phalanx understands."""


class WorkerLost(PhalanxError, RuntimeError):
    """Another worker is gone, stands still, or is at another place of the script."""


class PhalanxWarning(UserWarning):
    """Work goes on, but not quite as the settings suggest."""


def message(rule: str, received: str, paste: str) -> str:
    """Join the three parts of an error text.

    Args:
        rule: What must hold, one sentence.
        received: What was found instead, with names, paths and numbers.
        paste: The next line to type or paste.

    Returns:
        One text of three lines.

    Example:
        >>> print(message("Batches hold rows.", "batch 3 has 0 rows", "fit(x, y)"))
        Batches hold rows.
          received: batch 3 has 0 rows
          next:     fit(x, y)
    """
    return f"{rule}\n  received: {received}\n  next:     {paste}"


def warn(text: str) -> None:
    """Warn at the user's own line, however deep in Phalanx or Keras the cause was found.

    Args:
        text: A three-part text, see `message`.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].split(".")[0] in ("phalanx", "keras"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, PhalanxWarning, stacklevel=level)
