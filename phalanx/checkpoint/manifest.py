"""The manifest of a backup: what it holds, how large, with which checksums; written last, trusted never."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.errors import CheckpointError, message

FORMAT = 1
MANIFEST = "manifest.json"
ARRAYS = "arrays"
"""Folder of the arrays within a backup."""

_DTYPE = re.compile(r"[a-z][a-z0-9_]{1,20}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[a-z_]{1,20}\.[0-9]{1,9}")


@dataclass(frozen=True)
class Entry:
    """One array of a backup.

    Args:
        key: Its name in the storage: part and number.
        path: What the model calls it.
        shape: Its shape.
        dtype: Its dtype's name.
        crc: CRC-32 of its bytes in row order.
    """

    key: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    crc: int

    @property
    def part(self) -> str:
        """`"trainable"`, `"non_trainable"`, `"optimizer"`, `"metrics"`, or whose it is otherwise."""
        return self.key.partition(".")[0]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def form(self) -> str:
        """Shape and dtype as text."""
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


@dataclass(frozen=True)
class Manifest:
    """What a backup holds.

    Args:
        entries: Its arrays, in the order in which the model carries them.
        files: Relative path -> `(bytes, SHA-256)` of each file beside the manifest.
        progress: Where the run stood: plain values.
        about: Who wrote it: versions, replicas, optimizer; for people, and for named differences.
        written: Seconds since 1970.
    """

    entries: tuple[Entry, ...]
    files: Mapping[str, tuple[int, str]]
    progress: Mapping[str, Any]
    about: Mapping[str, Any]
    written: float

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())

    def to_json(self) -> bytes:
        """The text of the file."""
        plain = {
            "format": FORMAT,
            "written": self.written,
            "about": self.about,
            "progress": self.progress,
            "arrays": [[e.key, e.path, list(e.shape), e.dtype, e.crc] for e in self.entries],
            "files": {path: list(each) for path, each in self.files.items()},
        }
        return json.dumps(plain | {"checksum": checksum(plain)}, indent=1).encode()


def parse(text: bytes, where: str) -> Manifest:
    """Read a manifest that anybody may have written.

    Args:
        text: The bytes of the file.
        where: The file, for texts.

    Raises:
        CheckpointError: It is damaged, of another format, or names files outside its folder.
    """
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise _bad(where, f"format {found['format']!r}, this version reads format {FORMAT}")
        if found.pop("checksum") != checksum(found):
            raise _bad(where, "its checksum is another one: it has other bytes than were written")
        entries = tuple(_entry(each, where) for each in found["arrays"])
        files = {_safe(path, where): _file(each) for path, each in found["files"].items()}
        progress, about, written = found["progress"], found["about"], float(found["written"])
        if not isinstance(progress, dict) or not isinstance(about, dict):
            raise TypeError("progress and about are dicts")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _bad(where, f"{type(error).__name__}: {error}") from error
    if len({entry.key for entry in entries}) != len(entries):
        raise _bad(where, "an array is named twice")
    return Manifest(entries, files, progress, about, written)


def checksum(plain: Mapping[str, Any]) -> str:
    """SHA-256 of what a manifest says, whatever its spaces; against accidents, not against people."""
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def _entry(found: Any, where: str) -> Entry:
    key, path, shape, dtype, crc = found
    fine = (
        all(isinstance(each, str) for each in (key, path, dtype))
        and _KEY.fullmatch(key)
        and _DTYPE.fullmatch(dtype)
        and all(type(size) is int and 0 <= size < 2**48 for size in shape)
        and type(crc) is int
    )
    if not fine:
        raise _bad(where, f"an array described as {str(found)[:120]}")
    return Entry(key, path, tuple(shape), dtype, crc)


def _file(found: Any) -> tuple[int, str]:
    size, digest = found
    if type(size) is not int or size < 0 or not _DIGEST.fullmatch(digest):
        raise ValueError(f"a file described as {str(found)[:120]}")
    return size, digest


def _safe(path: str, where: str) -> str:
    """A relative path that stays below its folder."""
    parts = path.split("/")
    if (
        not path
        or "\\" in path
        or ":" in path
        or "\0" in path
        or any(each in ("", ".", "..") for each in parts)
    ):
        raise CheckpointError(
            message(
                "A backup stays inside its folder.",
                f"{where} names the file {path!r}",
                "do not use this backup: it was made by hand, or by somebody else",
            )
        )
    return path


def _bad(where: str, what: str) -> CheckpointError:
    return CheckpointError(
        message("A backup ends with a whole manifest.", f"{where}: {what}", "phalanx checkpoint ls DIR")
    )
