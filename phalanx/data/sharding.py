"""Which worker reads what: decided from what the data is, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import SettingError, message

POLICIES = ("data", "file", "off")


@dataclass(frozen=True)
class Sharding:
    """How the workers of a run share the reading of a source.

    Args:
        policy: `"data"`: each worker reads only its rows of the global batch. `"file"`: each worker reads
            a pipeline of its own, such as its own files. `"off"`: every worker reads all, and keeps its rows.
        reason: Why, as a sentence.

    Example:
        >>> print(Sharding("data", "arrays are cut by rows"))
        data: arrays are cut by rows
    """

    policy: str
    reason: str

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise SettingError(
                message(
                    f"A policy is one of {', '.join(map(repr, POLICIES))}.",
                    f"policy={self.policy!r}",
                    'Sharding("data", "arrays are cut by rows")',
                )
            )

    def __str__(self) -> str:
        return f"{self.policy}: {self.reason}"


def decide(kind: str, workers: int, *, host_only: bool = False) -> Sharding:
    """Choose who reads what.

    Args:
        kind: `"arrays"`, `"rows"` (a dataset whose rows can be asked for by number), `"pipelines"` (one of
            each worker's own), or what the data is called otherwise.
        workers: Host programs that train together.
        host_only: Some columns stay on the host, where each worker wants all of their rows.

    Returns:
        The policy and why.

    Example:
        >>> decide("arrays", workers=2).policy
        'data'
        >>> print(decide("a generator", workers=2))
        off: a generator yields whole batches, so every worker reads all
    """
    if kind == "pipelines":
        return Sharding("file", "each worker reads the pipeline that its function made")
    if workers == 1:
        return Sharding("off", "there is one worker, which reads all")
    if host_only:
        return Sharding("off", "host_only columns are given whole to every worker, so every worker reads all")
    if kind == "arrays":
        return Sharding("data", "arrays are cut by rows, so each worker reads only its own")
    if kind == "rows":
        return Sharding("data", "the dataset's rows have numbers, so each worker reads only its own")
    return Sharding("off", f"{kind} yields whole batches, so every worker reads all")
