"""Who takes part in a run: processes, their replicas, and which process this one is."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import SettingError, message


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a run and the replicas of each; values, never queries.

    Args:
        processes: Number of host programs that take part.
        process: Index of this one, `0 <= process < processes`.
        replicas_per_process: Model copies that each process drives.

    Example:
        >>> World(replicas_per_process=4).replicas
        4
    """

    processes: int = 1
    process: int = 0
    replicas_per_process: int = 1

    def __post_init__(self) -> None:
        if self.processes < 1 or self.replicas_per_process < 1 or not 0 <= self.process < self.processes:
            raise SettingError(
                message(
                    "A world has at least one process with one replica, and this process is one of them.",
                    f"processes={self.processes}, process={self.process}, "
                    f"replicas_per_process={self.replicas_per_process}",
                    "World(processes=1, process=0, replicas_per_process=1)",
                )
            )

    @property
    def replicas(self) -> int:
        """Model copies in the whole run."""
        return self.processes * self.replicas_per_process
