"""Faults as a script: which worker, at which step, what; read from text that anybody may have written."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from phalanx.errors import SettingError, message
from phalanx.text import quote

VARIABLE = "PHALANX_CHAOS"
"""The environment variable that holds the script."""

KINDS = {
    "kill": "the process is killed (SIGKILL)",
    "kill saving": "it is killed while the next backup is written",
    "kill restoring": "it is killed, and once more while it reads a backup",
    "kill compiling": "it is killed, and once more just after its first step has begun; at step 0 only so",
    "stop": "it stands still (SIGSTOP)",
    "terminate": "it is asked to end (SIGTERM), as a scheduler does",
    "flip": "a byte of the newest backup changes, and the process is killed",
    "readonly": "the folder of backups can only be read, until the run starts again",
    "full": "the disk of the backups is full, until the run starts again",
}
"""What can happen, by name. `"readonly"` wants a user other than root, or a folder that is a mount of its
own; `"full"` wants a disk with less than 256 MB free, such as a small tmpfs."""

ANYWHERE = ("kill", "kill saving", "kill restoring", "kill compiling", "stop", "terminate", "flip")
"""The kinds that need no file system of their own."""

_OF_THE_CHIEF = ("kill saving",)
_MOST = 10_000


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        worker: Whose process it hits; 0 is the chief.
        step: Training step, counted from the start of the run, after which it happens.
        what: One of `KINDS`.

    Raises:
        SettingError: Something else.
    """

    worker: int
    step: int
    what: str

    def __post_init__(self) -> None:
        numbers = all(type(each) is int and 0 <= each < 2**31 for each in (self.worker, self.step))
        if not numbers or self.what not in KINDS:
            raise _bad(f"worker={quote(self.worker)}, step={quote(self.step)}, what={quote(self.what)}")
        if self.what in _OF_THE_CHIEF and self.worker:
            raise _bad(f"{self.what!r} for worker {self.worker}: the chief alone writes backups")


@dataclass(frozen=True)
class Script:
    """Faults, in the order in which they happen, and where it is noted that they did.

    Args:
        faults: Each happens once, however often the run starts again.
        notes: A folder for notes, shared by all workers of this machine.
        backups: The folder of backups.
    """

    faults: Sequence[Fault]
    notes: str
    backups: str

    def to_json(self) -> str:
        """The text for `PHALANX_CHAOS`."""
        return json.dumps(
            {"faults": [astuple(each) for each in self.faults], "notes": self.notes, "backups": self.backups}
        )


def parse(text: str) -> Script:
    """Read a script.

    Args:
        text: As `Script.to_json` writes it.

    Raises:
        SettingError: It is no such text.

    Example:
        >>> parse('{"faults": [[1, 20, "kill"]], "notes": "/tmp/notes", "backups": "/tmp/backups"}').faults
        (Fault(worker=1, step=20, what='kill'),)
    """
    try:
        found = json.loads(text)
        faults, notes, backups = found["faults"], found["notes"], found["backups"]
        fine = (
            found.keys() == {"faults", "notes", "backups"}
            and all(isinstance(each, str) and each for each in (notes, backups))
            and isinstance(faults, list)
            and len(faults) <= _MOST
            and all(isinstance(each, list) and len(each) == 3 for each in faults)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _bad(f"{type(error).__name__}: {error}") from None
    if not fine:
        raise _bad(quote(text))
    return Script(tuple(Fault(*each) for each in faults), notes, backups)


def random_faults(
    seed: int, count: int, *, workers: int, steps: int, kinds: Sequence[str] = ANYWHERE
) -> tuple[Fault, ...]:
    """Draw faults; the same seed draws the same ones.

    Args:
        seed: Any number.
        count: How many.
        workers: Workers of the run.
        steps: Training steps of the run.
        kinds: What may happen.

    Returns:
        Faults in the order of their steps, which are all different.

    Raises:
        SettingError: Fewer steps than faults, or a kind that is none.

    Example:
        >>> random_faults(7, 2, workers=2, steps=100, kinds=["kill"]) == random_faults(
        ...     7, 2, workers=2, steps=100, kinds=["kill"]
        ... )
        True
    """
    if not 0 <= count < steps or workers < 1 or not kinds:
        raise _bad(f"{count} faults in {steps} steps of {workers} workers, of {len(kinds)} kinds")
    draw = random.Random(seed)
    faults = []
    for step in sorted(draw.sample(range(1, steps), count)):
        what, worker = draw.choice(list(kinds)), draw.randrange(workers)
        faults.append(Fault(0 if what in _OF_THE_CHIEF else worker, step, what))
    return tuple(faults)


def _bad(received: Any) -> SettingError:
    return SettingError(
        message(
            f"A fault is a worker, a step and one of {', '.join(map(repr, KINDS))}.",
            str(received),
            "Script([Fault(1, 20, 'kill')], notes='/tmp/notes', backups='/tmp/backups').to_json()",
        )
    )
