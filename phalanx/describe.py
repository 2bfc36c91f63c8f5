"""What a strategy is, as a value that prints as a short table."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import SettingError, message
from phalanx.split import rows_per_replica
from phalanx.text import table
from phalanx.world import World


@dataclass(frozen=True, kw_only=True)
class Description:
    """Devices, replicas, batch and view of a strategy; `print` it to read it.

    Args:
        strategy: Class name of the strategy.
        devices: Device names, in replica order.
        world: Processes and replicas.
        view: `"global"` or `"replica"`.
        global_batch: Rows of one optimizer step over all replicas, or None if not given.

    Example:
        >>> world = World(replicas_per_process=2)
        >>> d = Description(strategy="MirroredStrategy", devices=("cpu:0", "cpu:1"), world=world,
        ...                 view="global", global_batch=32)
        >>> d.batch_per_replica
        (16, 16)
    """

    strategy: str
    devices: tuple[str, ...]
    world: World
    view: str
    global_batch: int | None = None

    def __post_init__(self) -> None:
        batch = self.global_batch
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise SettingError(
                message(
                    "A global batch is a whole number of rows, 1 or more.",
                    f"global_batch={batch!r}",
                    "strategy.describe(global_batch=64)",
                )
            )

    @property
    def batch_per_replica(self) -> tuple[int, ...] | None:
        """Rows that each replica takes of a full global batch."""
        return None if self.global_batch is None else rows_per_replica(self.global_batch, self.world.replicas)

    @property
    def batch_per_worker(self) -> tuple[int, ...] | None:
        """Rows that each worker (process) takes of a full global batch."""
        rows, width = self.batch_per_replica, self.world.replicas_per_process
        if rows is None:
            return None
        return tuple(sum(rows[i : i + width]) for i in range(0, len(rows), width))

    def __str__(self) -> str:
        rows = [
            ("strategy", self.strategy),
            ("devices", ", ".join(self.devices)),
            ("replicas", str(self.world.replicas)),
            ("workers", str(self.world.processes)),
            ("view", self.view),
        ]
        if self.global_batch is not None:
            rows += [
                ("batch, global", str(self.global_batch)),
                ("batch, per worker", _same_or_all(self.batch_per_worker)),
                ("batch, per replica", _same_or_all(self.batch_per_replica)),
            ]
        return table(("setting", "value"), rows)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Rows that each device has been given; `print` it to read it.

    Args:
        devices: Device names, in replica order.
        rows: True rows of all batches so far, per device.
        notes: What was decided about data and gradients, with its reason.

    Example:
        >>> print(Work(devices=("cpu:0", "cpu:1"), rows=(70, 64)))
        device  rows
        cpu:0     70
        cpu:1     64
    """

    devices: tuple[str, ...]
    rows: tuple[int, ...]
    notes: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        work = table(("device", "rows"), list(zip(self.devices, self.rows, strict=True)), align="lr")
        return work + ("\n\n" + table(("what", "how"), list(self.notes)) if self.notes else "")


def _same_or_all(rows: tuple[int, ...] | None) -> str:
    if rows is None:
        return "-"
    return str(rows[0]) if len(set(rows)) == 1 else ", ".join(map(str, rows))
