"""Files and folders: questions about paths."""

from __future__ import annotations

import pathlib


def kind(path: str) -> str:
    """`"file"`, `"folder"` or `"nothing"`.

    Example:
        >>> kind(".")
        'folder'
    """
    found = pathlib.Path(path)
    return "folder" if found.is_dir() else "file" if found.exists() else "nothing"


def matches(pattern: str) -> list[str]:
    """Absolute paths that match a pattern such as `"/dev/nvidia[0-9]*"`, sorted."""
    return sorted(str(path) for path in pathlib.Path("/").glob(pattern.lstrip("/")))
