"""Job: what a manifest says of a run, checked before it is written anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import SettingError, message
from phalanx.text import quote

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_TIME = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,3}):([0-5][0-9]):([0-5][0-9])")
_LONGEST = 64 * 1024  # characters of all arguments; systems refuse more than twice that


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of one script on several machines.

    Args:
        arguments: What stands behind `phalanx run`'s options: the script and its arguments.
        workers: Processes, one on each machine.
        replicas: Model copies of each worker, or None for all that it finds.
        gpus: GPUs of each worker.
        name: What the scheduler calls it.
        image: The container image, where pods run it.
        time: The longest that it may run, `[days-]hours:minutes:seconds`, or None.
        max_restarts: Failures after which all workers start again.
        port: The first port on which workers meet, or None for the resolver's.

    Raises:
        SettingError: A value that no scheduler takes, or that cannot be written as text.

    Example:
        >>> Job(arguments=("train.py",), workers=2, time="1-02:00:00").seconds
        93600
    """

    arguments: Sequence[str]
    workers: int
    replicas: int | None = None
    gpus: int = 0
    name: str = "train"
    image: str | None = None
    time: str | None = None
    max_restarts: int = 0
    port: int | None = None

    def __post_init__(self) -> None:
        _check(
            _NAME.fullmatch(self.name) is not None,
            "A job's name is 40 small letters, digits and dashes at most, a letter first.",
            f"--name {quote(self.name)}",
            "phalanx manifest slurm --name train train.py",
        )
        _check(
            self.image is None or _IMAGE.fullmatch(self.image) is not None,
            "An image is registry/name:tag, without blanks.",
            f"--image {quote(self.image)}",
            "phalanx manifest kubernetes --image registry.example/train:1 train.py",
        )
        _check(
            self.time is None or _TIME.fullmatch(self.time) is not None,
            "The time limit is [days-]hours:minutes:seconds.",
            f"--time {quote(self.time)}",
            "phalanx manifest slurm --time 12:00:00 train.py",
        )
        _check(
            self.time is None or self.seconds != 0,
            "A job has time to run.",
            f"--time {quote(self.time)}",
            "phalanx manifest slurm --time 12:00:00 train.py",
        )
        _check(
            not self.gpus or (self.replicas or 0) <= self.gpus,
            "Each replica has a GPU of its own.",
            f"--replicas {self.replicas} --gpus {self.gpus}",
            f"phalanx manifest slurm --gpus {self.replicas} train.py",
        )
        for argument in self.arguments:
            _check(
                "\0" not in argument and not re.search("[\ud800-\udfff]", argument),
                "Arguments are text: Unicode without a zero.",
                quote(argument),
                "phalanx manifest slurm --workers 2 train.py --data /data",
            )
        length = sum(map(len, self.arguments))
        _check(
            length <= _LONGEST,
            f"Arguments have {_LONGEST} characters at most, all together.",
            f"{length} characters, the first argument {quote(self.arguments[0]) if length else ''}",
            "phalanx manifest slurm --workers 2 train.py --config config.json   # put them into a file",
        )

    @property
    def seconds(self) -> int | None:
        """The time limit in seconds."""
        found = _TIME.fullmatch(self.time or "")
        if found is None:
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    @property
    def command(self) -> list[str]:
        """What each worker runs: `phalanx run` without `--workers` becomes the script."""
        replicas = self.replicas or self.gpus or None
        return ["phalanx", "run", *(["--replicas", str(replicas)] if replicas else []), *self.arguments]


def _check(holds: bool, rule: str, received: str, paste: str) -> None:
    if not holds:
        raise SettingError(message(rule, received, paste))
