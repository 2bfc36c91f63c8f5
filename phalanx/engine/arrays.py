"""Host batches onto devices: the last stop of a batch before the compiled step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.errors import UnsupportedError, message
from phalanx.rows import has_rows, is_sparse, pad
from phalanx.split import padded_rows, rows_per_replica

DATA_AXIS = "data"


@dataclass(frozen=True)
class Placed:
    """A batch on the devices.

    Args:
        arrays: The batch's tree, each column split over the replicas by rows (padded to equal parts).
        rows: True rows of the whole batch.
        padded: Rows of each column as it lies on the devices.
        host: Columns that stay on the host, by name.
    """

    arrays: Any
    rows: int
    padded: int
    host: dict[str, Any] = field(default_factory=dict)

    @property
    def cut(self) -> int | None:
        """Rows to cut back to inside the step, or None where nothing was padded."""
        return None if self.rows == self.padded else self.rows


class Placement:
    """Where batches and variables of a data-parallel strategy live.

    Args:
        devices: JAX devices in replica order.

    Attributes:
        rows_placed: True rows that each replica has been given so far.
        alone: True if all devices are this process's own.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        # Auto axes: under jax.make_mesh's Explicit default, Keras layers fail.
        self.mesh = Mesh(np.array(devices), (DATA_AXIS,))
        self.devices = tuple(devices)
        self.rows = NamedSharding(self.mesh, PartitionSpec(DATA_AXIS))
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        self.rows_placed = [0] * len(devices)
        self.alone = all(device.process_index == jax.process_index() for device in devices)

    @property
    def replicas(self) -> int:
        """Number of devices, one replica each."""
        return len(self.devices)

    def place(self, batch: Any, rows: int, *, split: bool = True, copy: bool = False) -> Placed:
        """Put a host batch on the devices.

        Args:
            batch: Tree of arrays whose first dim is `rows`; scalars and sparse arrays go whole to each
                replica.
            rows: True rows of the batch.
            split: Split by rows over the replicas; False gives every replica the whole batch.
            copy: Copy host memory first: JAX may read it late, when a generator has already reused it.

        Returns:
            The placed batch; a remainder is padded with copies of the last row, to be cut off in the step.
        """
        padded = padded_rows(rows, self.replicas) if split else rows
        shares = rows_per_replica(rows, self.replicas) if split else (rows,) * self.replicas
        self.rows_placed = [before + share for before, share in zip(self.rows_placed, shares, strict=True)]
        leaves, tree = jax.tree.flatten(batch, is_leaf=is_sparse)
        placed = [self._column(leaf, padded, split and has_rows(leaf), copy) for leaf in leaves]
        return Placed(jax.tree.unflatten(tree, placed), rows, padded)

    def _column(self, column: Any, padded: int, split: bool, copy: bool) -> Any:
        """Place one column; host memory goes shard by shard, which costs half of `jax.device_put`."""
        if not split:
            return self.spread(column.copy() if copy and hasattr(column, "copy") else column)
        if isinstance(column, jax.Array) and self.alone:
            return jax.device_put(pad(column, padded - column.shape[0]), self.rows)
        column = np.asarray(column, jax.dtypes.canonicalize_dtype(column.dtype))

        def shard(index: tuple[slice, ...]) -> np.ndarray:
            start, stop = index[0].start or 0, index[0].stop or padded
            mine = column[start:stop] if start < column.shape[0] else column[-1:]
            missing = stop - start - len(mine)
            return pad(mine, missing) if missing else mine.copy() if copy else mine

        return jax.make_array_from_callback((padded, *column.shape[1:]), self.rows, shard)

    def replicate(self, values: Sequence[Any]) -> list[jax.Array]:
        """Copy each value whole onto every replica; every process gives the same values."""
        if self.alone:
            return list(jax.device_put(list(values), self.whole))
        return [self.spread(value) for value in values]

    def spread(self, value: Any) -> Any:
        """Copy one value whole onto every replica."""
        if self.alone:
            return jax.device_put(value, self.whole)
        if is_sparse(value):
            raise UnsupportedError(
                message(
                    "Several workers train on dense columns.",
                    f"a sparse column of shape {value.shape}",
                    "x = x.todense()",
                )
            )
        host = np.asarray(value)
        host = np.asarray(host, jax.dtypes.canonicalize_dtype(host.dtype))
        return jax.make_array_from_callback(host.shape, self.whole, lambda index: host[index])

    def own(self, value: jax.Array) -> jax.Array:
        """This process's copy of a value that lies whole on every replica."""
        return value.addressable_data(0)

    def holds(self, value: Any) -> bool:
        """True if a value already lies whole on every replica."""
        return (
            isinstance(value, jax.Array)
            and not value.is_deleted()
            and value.sharding.is_equivalent_to(self.whole, value.ndim)
        )


def to_host(tree: Any) -> Any:
    """Fetch a tree of device arrays as NumPy arrays."""
    return jax.tree.map(np.asarray, tree)


def wait(value: Any) -> None:
    """Block until a dispatched value is there; errors of its step surface here."""
    jax.block_until_ready(value)
