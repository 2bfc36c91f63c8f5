"""What each worker reads of the data, and why: a decision from names and numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

POLICIES = ("data", "file", "off")


@dataclass(frozen=True)
class Sharding:
    """Which part of the data one worker reads.

    Args:
        policy: `"data"`: its own rows of each global batch. `"file"`: a pipeline of its own, such as its own
            files. `"off"`: whole global batches, of which it keeps its own rows.
        reason: Why, as a sentence.
    """

    policy: str
    reason: str

    def __str__(self) -> str:
        return f"{self.policy}: {self.reason}"


def decide(kind: str, *, workers: int, by_row: bool, own: bool = False, host_columns: bool = False) -> Sharding:
    """Choose what each worker reads.

    Args:
        kind: What the data is, for the reason: `"arrays"`, `"a PyDataset"`.
        workers: Host programs that take part.
        by_row: True if any rows of a batch can be read without the others.
        own: True if each worker has a pipeline of its own.
        host_columns: True if columns stay on the host, where every worker has all of their rows.

    Returns:
        The policy and its reason.

    Example:
        >>> decide("arrays", workers=2, by_row=True).policy
        'data'
        >>> print(decide("a generator", workers=2, by_row=False))
        off: the rows of a generator cannot be read one by one; every worker reads whole global batches
    """
    if own:
        return Sharding("file", "each worker reads the pipeline that its own function made")
    if workers == 1:
        return Sharding("off", "the only worker reads everything")
    if host_columns:
        return Sharding("off", "columns that stay on the host are whole on every worker")
    if by_row:
        return Sharding("data", f"the rows of {kind} can be read one by one; each worker reads its own")
    return Sharding(
        "off", f"the rows of {kind} cannot be read one by one; every worker reads whole global batches"
    )
