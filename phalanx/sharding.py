"""Who reads what of the data when several workers train: a value, and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass

DATA, FILE, OFF = "data", "file", "off"
"""Each worker reads its own rows of each global batch; reads a pipeline of its own; reads everything."""

_WHOLE = {
    "PyDataset": "a PyDataset hands out whole batches",
    "tf.data": "a tf.data pipeline hands out whole batches",
    "DataLoader": "a torch DataLoader hands out whole batches",
    "grain": "this grain dataset does something to whole batches after .batch()",
    "generator": "a generator can only be run whole",
}


@dataclass(frozen=True)
class Sharding:
    """How the workers share the reading.

    Args:
        policy: `"data"`, `"file"` or `"off"`, as in tf.distribute's `AutoShardPolicy`.
        why: The reason, one sentence.
    """

    policy: str
    why: str

    def __str__(self) -> str:
        return f"{self.policy}: {self.why}"


def decide(kind: str, workers: int, *, host_only: bool = False, whole_step: bool = False) -> Sharding:
    """Choose who reads what.

    Args:
        kind: `"arrays"`, `"grain rows"` (a map dataset whose rows can be reached), `"pipelines"` (one per
            worker), or what hands out whole batches: `"PyDataset"`, `"tf.data"`, `"DataLoader"`, `"grain"`,
            `"generator"`.
        workers: Host programs that take part.
        host_only: True if the data has columns that stay on the host.
        whole_step: True if the step takes the whole batch on every replica (eager steps).

    Returns:
        The policy with its reason.

    Example:
        >>> print(decide("arrays", workers=2))
        data: each worker reads its own rows of each batch
        >>> print(decide("tf.data", workers=2))
        off: every worker reads all: a tf.data pipeline hands out whole batches
        >>> decide("arrays", workers=1).policy
        'off'
    """
    if kind == "pipelines":
        return Sharding(FILE, "each worker reads the pipeline that it was given")
    if workers == 1:
        return Sharding(OFF, "there is one worker")
    if whole_step:
        return Sharding(OFF, "every worker reads all: eager steps take whole batches")
    if kind in ("arrays", "grain rows") and not host_only:
        return Sharding(DATA, "each worker reads its own rows of each batch")
    why = "columns that stay on the host go whole to callbacks" if host_only else _WHOLE.get(kind, kind)
    return Sharding(OFF, f"every worker reads all: {why}")
