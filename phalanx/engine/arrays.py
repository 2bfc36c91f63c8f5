"""Host batches onto devices: the last stop of a batch before the compiled step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.errors import UnsupportedError, message
from phalanx.rows import Rows, has_rows, is_sparse, pad
from phalanx.split import is_equal_runs, own_rows, rows_per_replica

DATA_AXIS = "data"


@dataclass(frozen=True)
class Placed:
    """A batch on the devices.

    Args:
        arrays: The batch's tree, each column split over the replicas by rows (padded to equal parts).
        rows: True rows of the whole batch.
        padded: Rows of each column as it lies on the devices.
        sizes: True rows of each replica.
        host: Columns that stay on the host, by name.
    """

    arrays: Any
    rows: int
    padded: int
    sizes: tuple[int, ...]
    host: dict[str, Any] = field(default_factory=dict)

    @property
    def cut(self) -> Rows:
        """Rows to cut back to inside the step, or None where nothing was padded."""
        if self.rows == self.padded:
            return None
        return self.rows if is_equal_runs(self.sizes) else self.sizes


class Placement:
    """Where batches and variables of a data-parallel strategy live.

    Args:
        devices: JAX devices in replica order.

    Attributes:
        rows_placed: True rows that each replica has been given so far.
        alone: True if all devices are this process's own.
        first: Index of this process's first replica.
        count: How many it has.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        # Auto axes: under jax.make_mesh's Explicit default, Keras layers fail.
        self.mesh = Mesh(np.array(devices), (DATA_AXIS,))
        self.devices = tuple(devices)
        self.rows = NamedSharding(self.mesh, PartitionSpec(DATA_AXIS))
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        self.rows_placed = [0] * len(devices)
        mine = [i for i, each in enumerate(devices) if each.process_index == jax.process_index()]
        self.alone, self.first, self.count = len(mine) == len(devices), mine[0], len(mine)

    @property
    def replicas(self) -> int:
        """Number of devices, one replica each."""
        return len(self.devices)

    def own(self, rows: int) -> tuple[int, int]:
        """The rows of a global batch that this process's replicas take, as `(start, stop)`."""
        return own_rows(rows, self.replicas, self.first, self.count)

    def place(
        self,
        batch: Any,
        rows: int,
        *,
        split: bool = True,
        copy: bool = False,
        sizes: tuple[int, ...] | None = None,
        own: bool = False,
    ) -> Placed:
        """Put a host batch on the devices.

        Args:
            batch: Tree of arrays whose first dim is `rows`; scalars and sparse arrays go whole to each
                replica.
            rows: True rows of the batch.
            split: Split by rows over the replicas; False gives every replica the whole batch.
            copy: Copy host memory first: JAX may read it late, when a generator has already reused it.
            sizes: True rows of each replica, where these are not equal runs.
            own: The batch holds this process's rows alone, those of `own(rows)` or of its `sizes`.

        Returns:
            The placed batch; a remainder is padded with copies of the last row, to be cut off in the step.
        """
        shares = sizes or (rows_per_replica(rows, self.replicas) if split else (rows,) * self.replicas)
        padded = max(shares) * self.replicas if split else rows
        starts = tuple(sum(shares[self.first if own else 0 : replica]) for replica in range(self.replicas))
        self.rows_placed = [before + share for before, share in zip(self.rows_placed, shares, strict=True)]
        leaves, tree = jax.tree.flatten(batch, is_leaf=is_sparse)
        placed = [
            self._by_rows(leaf, shares, starts, copy)
            if split and has_rows(leaf)
            else self.spread(leaf.copy() if copy and hasattr(leaf, "copy") else leaf)
            for leaf in leaves
        ]
        return Placed(jax.tree.unflatten(tree, placed), rows, padded, shares)

    def _by_rows(self, column: Any, shares: Sequence[int], starts: Sequence[int], copy: bool) -> Any:
        """Place one column; host memory goes shard by shard, which costs half of `jax.device_put`."""
        each = max(shares)
        padded = each * self.replicas
        if isinstance(column, jax.Array) and self.alone and is_equal_runs(shares):
            return jax.device_put(pad(column, padded - column.shape[0]), self.rows)
        column = np.asarray(column, jax.dtypes.canonicalize_dtype(column.dtype))

        def shard(index: tuple[slice, ...]) -> np.ndarray:
            replica = (index[0].start or 0) // each
            size, start = shares[replica], starts[replica]
            mine = column[start : start + size] if size else column[-1:]
            missing = each - len(mine)
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

    def own_part(self, outputs: Any, sizes: Sequence[int]) -> Any:
        """This process's true rows of outputs that lie padded and split by rows, as NumPy arrays.

        Args:
            outputs: Tree of arrays, each `(padded, ...)`.
            sizes: True rows of each replica.
        """

        def part(column: jax.Array) -> np.ndarray:
            shards = sorted(column.addressable_shards, key=lambda shard: shard.index[0].start or 0)
            mine = sizes[self.first : self.first + self.count]
            return np.concatenate(
                [np.asarray(shard.data)[:size] for shard, size in zip(shards, mine, strict=True)]
            )

        return jax.tree.map(part, outputs)

    def own_copy(self, value: jax.Array) -> jax.Array:
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
    """Fetch a tree of device arrays as NumPy arrays of their own, which may be written to."""
    return jax.tree.map(np.array, tree)


def wait(value: Any) -> None:
    """Block until a dispatched value is there; errors of its step surface here."""
    jax.block_until_ready(value)
