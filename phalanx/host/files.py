"""Files and folders: questions about paths."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator


def kind(path: str) -> str:
    """`"file"`, `"folder"` or `"nothing"`.

    Example:
        >>> kind(".")
        'folder'
    """
    found = pathlib.Path(path)
    return "folder" if found.is_dir() else "file" if found.exists() else "nothing"


def working_folder() -> str:
    """Where this process runs: the absolute path."""
    return str(pathlib.Path.cwd())


def matches(pattern: str) -> list[str]:
    """Absolute paths that match a pattern such as `"/dev/nvidia[0-9]*"`, sorted."""
    return sorted(str(path) for path in pathlib.Path("/").glob(pattern.lstrip("/")))


@contextlib.contextmanager
def token(folder: str) -> Iterator[tuple[str, str]]:
    """Write a small file of a name and text that nobody else has, and remove it at the end.

    Args:
        folder: Where.

    Yields:
        Its name, and the text in it.

    Raises:
        OSError: The folder cannot be written to.
    """
    text = secrets.token_hex(16)
    path = pathlib.Path(folder) / f".phalanx-check-{secrets.token_hex(8)}"
    path.write_text(text, encoding="ascii")
    try:
        yield path.name, text
    finally:
        path.unlink(missing_ok=True)


def holds(folder: str, name: str, text: str, seconds: float) -> bool:
    """Whether a folder has a file of this name and text; network file systems may be late.

    Args:
        folder: Where.
        name: The file's name, never a path.
        text: What should be in it.
        seconds: How long to wait for it.

    Returns:
        True if it is there.
    """
    path = pathlib.Path(folder) / pathlib.Path(name).name
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):  # not there yet, or not for this user to read
            return path.read_text(encoding="ascii", errors="replace") == text
        if time.monotonic() >= until:
            return False
        time.sleep(0.1)


@contextlib.contextmanager
def private_folder(prefix: str) -> Iterator[str]:
    """A new folder for temporary files that only this user may enter, removed at the end with all in it.

    Args:
        prefix: How its name begins.

    Yields:
        Its absolute path.

    Raises:
        OSError: It cannot be made.
    """
    path = pathlib.Path(tempfile.mkdtemp(prefix=prefix)).absolute()  # mode 0700
    try:
        yield str(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def make_empty(path: str) -> None:
    """Make a file of no bytes."""
    pathlib.Path(path).touch(exist_ok=False)
