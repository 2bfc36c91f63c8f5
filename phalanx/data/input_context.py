"""What a function that makes one worker's pipeline is told: how many there are, and which one this is."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import SettingError, message


@dataclass(frozen=True)
class InputContext:
    """The place of one worker's pipeline among all; `strategy.distribute_datasets_from_function` makes it.

    Args:
        num_input_pipelines: Pipelines in the run, one for each worker.
        input_pipeline_id: Which of them this is, from 0.
        num_replicas_in_sync: Model copies in the whole run.

    Example:
        >>> context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
        >>> context.get_per_replica_batch_size(64)
        16

    References:
        `tf.distribute.InputContext`.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.input_pipeline_id < self.num_input_pipelines <= self.num_replicas_in_sync:
            raise SettingError(
                message(
                    "Each worker has one pipeline and at least one replica; this one is one of them.",
                    f"num_input_pipelines={self.num_input_pipelines}, "
                    f"input_pipeline_id={self.input_pipeline_id}, "
                    f"num_replicas_in_sync={self.num_replicas_in_sync}",
                    "InputContext(num_input_pipelines=2, input_pipeline_id=0, num_replicas_in_sync=2)",
                )
            )

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Rows of the batches that the pipeline yields: one batch is one replica's part of a step.

        Args:
            global_batch_size: Rows of one step over all replicas.

        Raises:
            SettingError: It does not divide by the replicas.
        """
        rows, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest or rows < 1:
            near = self.num_replicas_in_sync * max(1, rows)
            raise SettingError(
                message(
                    "Batches of a pipeline are equal: the global batch divides by the replicas.",
                    f"{global_batch_size} rows for {self.num_replicas_in_sync} replicas",
                    f"context.get_per_replica_batch_size({near})",
                )
            )
        return rows
