"""Harm on purpose, to this process and to files that are named; for tests of what survives it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

_ROOM = 256 << 20  # bytes that may be filled
_FILLER = ".filled-on-purpose"
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")


def send_to_self(name: str) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), signal.Signals[name])


def kill_later(seconds: float, first: Callable[[], object]) -> None:
    """Kill this process after some seconds; `first` is called just before."""

    def end() -> None:
        first()
        send_to_self("SIGKILL")

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def kill_at_files(thread: str, writing: bool, below: str, number: int, first: Callable[[], object]) -> None:
    """Kill this process at one of its operations on files.

    Args:
        thread: Name of the thread whose operations count.
        writing: Operations that change something count; otherwise those that open files to read.
        below: Only files of this folder count, and it.
        number: Which of them, from 1 on.
        first: Called just before.
    """
    left = [number]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if left[0] < 1 or threading.current_thread().name != thread:
            return
        path = str(arguments[0]) if arguments else ""
        changes = event in _CHANGES or (event == "open" and _writes(arguments))
        counts = changes if writing else event == "open" and not changes
        if counts and f"{path}/".startswith(f"{below}/"):
            left[0] -= 1
            if left[0] == 0:
                first()
                send_to_self("SIGKILL")

    sys.addaudithook(watch)


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 else 0
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def flip_byte(path: str) -> None:
    """Change one bit in the middle of a file."""
    file = pathlib.Path(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def make_read_only(folder: str, on: bool) -> str | None:
    """Make a folder read-only, or undo that.

    Returns:
        Why it cannot be done; None where it was.
    """
    if os.geteuid() != 0:
        os.chmod(folder, 0o500 if on else 0o700)
        return None
    if not os.path.ismount(folder):
        return f"root may write to {folder} whatever its mode is, and it is no mount of its own"
    mode = "remount,ro" if on else "remount,rw"
    done = subprocess.run(["mount", "-o", mode, folder], capture_output=True, text=True, check=False)
    return done.stderr.strip() or "mount failed" if done.returncode else None


def fill(folder: str, on: bool) -> str | None:
    """Fill a small disk, or undo that.

    Returns:
        Why it cannot be done; None where it was.
    """
    path = pathlib.Path(folder) / _FILLER
    if not on:
        path.unlink(missing_ok=True)
        return None
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if free > _ROOM:
        return f"{free >> 20} MB are free in {folder}, more than the {_ROOM >> 20} that may be filled"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            continue
    return None


def claim(path: str, text: str) -> bool:
    """Make a file of a text; False where it is there already."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


def append(path: str, line: str) -> None:
    """Add a line to a file, whole or not at all."""
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(number, f"{line}\n".encode())
    finally:
        os.close(number)
