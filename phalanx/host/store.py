"""Files that must survive: whole or not there, synced to the disk, and counted."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import stat
import time

_CHUNK = 1 << 20


def write(path: str, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read(path: str, most: int) -> bytes:
    """Read a plain file of at most `most` bytes.

    Raises:
        OSError: It is no plain file, or larger.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(f"{path} is not a plain file")
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path} is larger than {most} bytes")
    return data


def files(folder: str) -> dict[str, int]:
    """All files under a folder: relative path -> bytes; -1 for what is no plain file, such as a link."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in names + [each for each in folders if os.path.islink(os.path.join(place, each))]:
            path = os.path.join(place, name)
            info = os.lstat(path)
            relative = os.path.relpath(path, folder).replace(os.sep, "/")
            found[relative] = info.st_size if stat.S_ISREG(info.st_mode) else -1
    return found


def digest(path: str) -> str:
    """SHA-256 of a file."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            total.update(data)
    return total.hexdigest()


def sync(folder: str) -> None:
    """Wait until the disk has all files under a folder, and the folders' own entries."""
    for place, _, names in os.walk(folder):
        for each in (*(os.path.join(place, name) for name in names), place):
            _sync(each)


def commit(temporary: str, final: str) -> None:
    """Give a complete folder its name, in one step, and wait until the disk knows it."""
    os.rename(temporary, final)
    _sync(os.path.dirname(final))


def make_folder(path: str) -> None:
    """Make a folder, and those above it."""
    os.makedirs(path, exist_ok=True)


def folders(path: str) -> list[str]:
    """Names of the folders in a folder, sorted; none where it is not there."""
    try:
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def remove(path: str) -> None:
    """Remove a folder with all that it holds; no complaint if it is not there."""
    shutil.rmtree(path, ignore_errors=True)


def remove_file(path: str) -> None:
    """Remove a file; no complaint if it is not there."""
    pathlib.Path(path).unlink(missing_ok=True)


def remove_if_empty(path: str) -> None:
    """Remove a folder that holds nothing."""
    try:
        os.rmdir(path)
    except OSError:
        return


def absolute(path: str) -> str:
    """A path that no change of the working folder moves."""
    return os.path.abspath(os.path.expanduser(path))


def name(path: str) -> str:
    """The last part of a path."""
    return os.path.basename(path)


def local_time(seconds: float) -> str:
    """Seconds since 1970 as text."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def wall_clock() -> float:
    """Seconds since 1970."""
    return time.time()


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
