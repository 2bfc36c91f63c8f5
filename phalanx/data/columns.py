"""The columns of a batch: their names, their rows, and whether a device can hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.errors import ColumnError, DataError, message
from phalanx.rows import has_rows, is_sparse

_ROLES = ("x", "y", "sample_weight")


def named(batch: Any) -> Iterator[tuple[str, Any]]:
    """Walk the columns of a batch with their names as a user would write them.

    Example:
        >>> a = np.ones(3)
        >>> [name for name, _ in named(({"a": a, "b": [a, a]}, a))]
        ["x['a']", "x['b'][0]", "x['b'][1]", 'y']
    """
    parts = batch if isinstance(batch, (tuple, list)) and 1 <= len(batch) <= 3 else (batch,)
    for role, part in zip(_ROLES, parts, strict=False):
        yield from _walk(role, part)


def row_shapes(batch: Any) -> dict[str, str | None]:
    """Shape and dtype of a row of each column, by its name; None for a sparse one.

    Example:
        >>> row_shapes((np.ones((5, 8)), np.ones(5, "int32")))
        {'x': '(8,) float64', 'y': '() int32'}
    """
    return {
        path: None
        if is_sparse(column)
        else f"{tuple(column.shape[1:])} {getattr(column, 'dtype', '')}".strip()
        for path, column in named(batch)
        if hasattr(column, "shape")
    }


def count_rows(batch: Any, where: str, least: int = 1) -> int:
    """The rows of a batch, once every column is known to have as many and to hold numbers.

    Args:
        batch: Tree of host arrays, `(x,)`, `(x, y)` or `(x, y, sample_weight)`.
        where: What the batch is, for the error text, such as `"batch 3"`.
        least: 0 where a batch without rows is in order.

    Returns:
        The common first dim.

    Raises:
        ColumnError: A column holds strings or objects.
        DataError: No rows, or columns of different lengths.
    """
    rows: dict[str, int] = {}
    for name, column in named(batch):
        check_numeric(name, column)
        if has_rows(column) or is_sparse(column):
            rows[name] = int(column.shape[0])
    if len(set(rows.values())) > 1:
        raise DataError(
            message(
                "All columns of a batch have the same number of rows.",
                f"{where}: " + ", ".join(f"{name} has {n}" for name, n in rows.items()),
                "fit(x[:n], y[:n])   # n = the shorter length",
            )
        )
    count = next(iter(rows.values()), 0)
    if count < least or not rows:
        raise DataError(
            message(
                "A batch has at least one row.",
                f"{where} has 0 rows" if rows else f"{where} has no column with rows",
                "print(len(x))   # then fit(x, y) with rows in it, or skip empty batches in the generator",
            )
        )
    return count


def check_numeric(name: str, column: Any) -> None:
    """Refuse a column that no device can hold.

    Raises:
        ColumnError: Naming the column and the remedy.
    """
    dtypes = getattr(column, "dtypes", None)
    if dtypes is not None and hasattr(dtypes, "items"):  # a data frame: one dtype per column
        for key, dtype in dtypes.items():
            kept = dtype if isinstance(dtype, np.dtype) else _Extension(str(dtype))
            _check_dtype(f"{name}[{key!r}]", kept, can_stay=False)
    elif isinstance(column, (list, tuple)):
        raise _not_an_array(name, column)
    else:
        _check_dtype(name, getattr(column, "dtype", type(column)))


def check_lists(batch: Any) -> None:
    """Refuse rows of plain numbers, which are no arrays.

    Raises:
        ColumnError: Naming the column and the remedy.
    """
    for name, column in named(batch):
        if isinstance(column, (list, tuple)):
            raise _not_an_array(name, column)


def _not_an_array(name: str, column: Any) -> ColumnError:
    try:
        numbers = np.asarray(column).dtype.kind in "biufc"
    except ValueError:  # rows of unequal length
        paste = f"{name} = keras.utils.pad_sequences({name}, dtype='float32')"
    else:
        as_numbers = f'{name} = np.asarray({name}, "float32")'
        paste = as_numbers if numbers else f"{name} = np.unique({name}, return_inverse=True)[1]"
    return ColumnError(
        message(
            "Columns are arrays of numbers, and all their rows have one shape.",
            f"{name} of type {type(column).__name__}",
            paste,
        )
    )


@dataclass(frozen=True)
class _Extension:
    """A dtype of pandas's own, which becomes objects as soon as a value is missing."""

    name: str
    kind: str = "O"

    def __str__(self) -> str:
        return self.name


def _check_dtype(name: str, dtype: Any, can_stay: bool = True) -> None:
    if getattr(dtype, "names", None):
        raise ColumnError(
            message(
                "A column holds one number in each place; fields are columns of their own.",
                f"{name} of fields {', '.join(dtype.names)}",
                f"{name} = np.stack([{name}[field] for field in {name}.dtype.names], axis=-1)",
            )
        )
    if getattr(dtype, "kind", None) in ("O", "S", "U", "M", "m") or dtype in (str, bytes):
        key = name.split("'")[1] if can_stay and "'" in name else None
        keep = f"   # or: phalanx.MirroredStrategy(host_only=[{key!r}])" if key else ""
        raise ColumnError(
            message(
                "Columns that go to a device hold numbers, and all their rows have one shape.",
                f"{name} of dtype {getattr(dtype, '__name__', dtype)}",
                f"{name} = np.unique({name}, return_inverse=True)[1]{keep}",
            )
        )


def take_host_only(batch: Any, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """Take the columns that stay on the host out of a batch's dicts.

    Args:
        batch: Tree of host arrays.
        names: Dict keys to take out, wherever they stand.

    Returns:
        The batch without them, and the columns by name, rows in the same order.

    Example:
        >>> take_host_only(({"x": 1, "id": "a"}, 2), ("id",))
        (({'x': 1}, 2), {'id': 'a'})
    """
    if not names:
        return batch, {}
    taken: dict[str, Any] = {}

    def without(part: Any) -> Any:
        if isinstance(part, Mapping):
            taken.update({key: part[key] for key in part if key in names})
            return {key: without(value) for key, value in part.items() if key not in names}
        if isinstance(part, (tuple, list)):
            return type(part)(without(value) for value in part)
        return part

    return without(batch), taken


def number_rows(arrays: Any, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """Put row numbers in the place of columns that stay on the host, so that they can be cut and shuffled.

    Args:
        arrays: Tree of whole arrays.
        names: Dict keys of such columns.

    Returns:
        The tree with numbers in it, and the columns by name; `look_up` puts their rows back.

    Example:
        >>> numbered, host = number_rows({"x": np.ones(3), "id": ["a", "b", "c"]}, ("id",))
        >>> look_up({"id": numbered["id"][1:]}, host)
        {'id': array(['b', 'c'], dtype='<U1')}
    """
    host: dict[str, Any] = {}

    def number(key: str, column: Any) -> Any:
        host[key] = np.asarray(column)
        return np.arange(len(host[key]))

    return _replaced(arrays, names, number), host


def look_up(batch: Any, host: dict[str, Any]) -> Any:
    """Put rows of columns that stay on the host back in the place of their numbers."""
    return _replaced(batch, tuple(host), lambda key, numbers: host[key][np.asarray(numbers)])


def _replaced(part: Any, names: tuple[str, ...], column: Callable[[str, Any], Any]) -> Any:
    if not names:
        return part
    if isinstance(part, Mapping):
        return {
            key: column(key, value) if key in names else _replaced(value, names, column)
            for key, value in part.items()
        }
    if isinstance(part, (tuple, list)):
        return type(part)(_replaced(value, names, column) for value in part)
    return part


def _is_tree(value: Any) -> bool:
    """False for numbers, strings and rows of them: a list of those is a column that is no array."""
    if isinstance(value, (list, tuple)):
        return all(_is_tree(each) for each in value)
    return value is None or hasattr(value, "shape") or isinstance(value, Mapping)


def _walk(name: str, part: Any) -> Iterator[tuple[str, Any]]:
    if part is None:
        return
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _walk(f"{name}[{key!r}]", value)
    elif isinstance(part, (tuple, list)) and all(_is_tree(value) for value in part):
        for index, value in enumerate(part):
            yield from _walk(f"{name}[{index}]", value)
    else:
        yield name, part
