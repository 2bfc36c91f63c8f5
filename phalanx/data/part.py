"""A global batch of which a worker holds its own rows only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from phalanx.rows import is_sparse


@dataclass(frozen=True)
class Part:
    """Some rows of a global batch, in host memory.

    Args:
        arrays: The batch's tree, with this worker's rows (none, if its replicas have none).
        rows: Rows of the whole batch, over all workers.
        sizes: Rows of each replica of all workers, where these are not equal runs.
    """

    arrays: Any
    rows: int
    sizes: tuple[int, ...] | None = None

    def stand_in(self) -> Any:
        """Zeros of the shapes and dtypes of the whole batch, in no memory of their own."""

        def zeros(column: Any) -> Any:
            if is_sparse(column):
                return column
            column = np.asarray(column)
            return np.broadcast_to(np.zeros((), column.dtype), (self.rows, *column.shape[1:]))

        return jax.tree.map(zeros, self.arrays, is_leaf=is_sparse)
