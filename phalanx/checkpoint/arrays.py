"""Arrays on the disk: Orbax writes and reads them, nothing here knows a format."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as orbax

from phalanx.checkpoint.folder import reason
from phalanx.checkpoint.manifest import Entry
from phalanx.engine import runtime
from phalanx.errors import CheckpointError, message

_SHORT = {
    name: getattr(ml_dtypes, name)
    for name in dir(ml_dtypes)
    if name.startswith(("bfloat", "float", "int", "uint"))
}


def entry(key: str, path: str, value: np.ndarray) -> Entry:
    """Describe a host array."""
    return Entry(key, path, value.shape, value.dtype.name, crc(value))


def crc(value: np.ndarray) -> int:
    """CRC-32 of an array's bytes in row order."""
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data) if value.size else 0


def write(folder: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write host arrays into a new folder; this process alone, whoever else takes part in the run."""
    tree = {key: value for key, value in arrays.items() if value.size}
    if not tree:
        return
    with _storage() as storage:
        storage.save(folder, args=orbax.args.PyTreeSave(tree))


def read(folder: str, entries: Sequence[Entry]) -> dict[str, np.ndarray]:
    """Read arrays whose shapes have been checked against what is wanted.

    Args:
        folder: Where `write` put them.
        entries: What the manifest says of them.

    Raises:
        CheckpointError: The storage holds other shapes than the manifest says, or other bytes.
    """
    arrays = {each.key: np.zeros(each.shape, _dtype(each)) for each in entries if not each.count}
    stored = [each for each in entries if each.count]
    if stored:
        with _storage() as storage:
            found = storage.metadata(folder).item_metadata
            if found is None:
                raise _unlike(folder, "nothing that the storage can read")
            there = found.tree
            for each in stored:
                _check(each, there.get(each.key), folder)
            wanted = {each.key: orbax.RestoreArgs(restore_type=np.ndarray) for each in stored}
            arrays |= storage.restore(
                folder,
                args=orbax.args.PyTreeRestore(
                    item=dict.fromkeys(wanted, 0), restore_args=wanted, partial_restore=True
                ),
            )
    for each in entries:
        if crc(arrays[each.key]) != each.crc:
            raise _unlike(folder, f"{each.path} with other bytes than were saved")
    return arrays


def wrong_array(folder: str, entries: Sequence[Entry]) -> str | None:
    """Read back one array after the other, as restoring would.

    Args:
        folder: Where `write` put them.
        entries: What the manifest says of them.

    Returns:
        The first that does not come back as it was written, and why; None if all do.
    """
    for each in entries:
        try:
            read(folder, [each])
        except (CheckpointError, OSError, ValueError, RuntimeError, MemoryError, KeyError) as error:
            return f"{each.path} does not read back: {reason(error)}"
    return None


def _check(entry: Entry, there: Any, folder: str) -> None:
    if there is None or tuple(there.shape) != entry.shape or np.dtype(there.dtype) != _dtype(entry):
        what = "nothing" if there is None else f"{tuple(there.shape)} {there.dtype}"
        raise _unlike(folder, f"{what} where the manifest says {entry.path} {entry.form}")


def _dtype(entry: Entry) -> np.dtype:
    try:
        return np.dtype(_SHORT.get(entry.dtype, entry.dtype))
    except TypeError as error:
        raise _unlike(entry.path, f"the dtype {entry.dtype!r}") from error


def _unlike(folder: str, what: str) -> CheckpointError:
    return CheckpointError(
        message(
            "A backup's arrays are those of its manifest.",
            f"{folder}: {what}",
            "phalanx checkpoint verify DIR",
        )
    )


@contextlib.contextmanager
def _storage() -> Iterator[Any]:
    """Orbax, for this process alone."""
    alone = orbax.options.MultiprocessingOptions(
        primary_host=runtime.process(),
        active_processes={runtime.process()},
        barrier_sync_key_prefix=f"phalanx{runtime.process()}",
    )
    # Without compression: weights shrink by a tenth, for twice the time on cores that train.
    handler = orbax.PyTreeCheckpointHandler(
        use_ocdbt=True, use_compression=False, multiprocessing_options=alone
    )
    storage = orbax.Checkpointer(handler, multiprocessing_options=alone)
    try:
        yield storage
    finally:
        storage.close()
