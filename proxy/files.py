"""Files that other processes write too: whether one has changed, the right to change it, and its change as a whole."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LOCK_S = 5.0
RETRY_S = 0.01

Signature = tuple[int, int, int]
"""The inode, the time of the last change and the size: what tells a file's content from another."""


def signature_of(path: Path) -> Signature | None:
    """Return what tells the file's content from another; None where there is none. Raises: OSError."""
    try:
        return _signature(path.stat())
    except FileNotFoundError:
        return None


def _signature(found: os.stat_result) -> Signature:
    return found.st_ino, found.st_mtime_ns, found.st_size


class Lock:
    """The lock of a file, held. It lies beside the file, which is replaced at each write, and tells of the last one."""

    def __init__(self, path: Path, beside: IO[str]) -> None:
        self._path = path
        self._beside = beside

    def write(self, text: str) -> Signature:
        """Write the file whole; return its signature. Raises: OSError."""
        written = write_whole(self._path, text)
        self._beside.truncate(0)
        self._beside.write(_noted(written))
        self._beside.flush()
        return written


@contextmanager
def locked(path: Path, wait_s: float = LOCK_S) -> Iterator[Lock]:
    """Hold the lock of a file while the block runs; it is given back however the process ends.

    Raises: OSError, TimeoutError among them where somebody else holds it for too long.
    """
    with _beside(path).open("a") as beside:
        _take(beside.fileno(), path, time.monotonic() + wait_s)
        yield Lock(path, beside)


def is_whole(path: Path, found: Signature) -> bool:
    """Return whether a file was written by `Lock.write`, and so is whole; another may be in the middle of a write."""
    try:
        return _beside(path).read_text() == _noted(found)
    except FileNotFoundError:
        return False


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _noted(signature: Signature) -> str:
    return " ".join(map(str, signature))


def _take(handle: int, path: Path, until_s: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise TimeoutError(0, "another process has held its lock for too long", str(path)) from None
            time.sleep(RETRY_S)
        else:
            return


def write_whole(path: Path, text: str) -> Signature:
    """Write a file so that a reader sees the old text or the new one; return its signature. Raises: OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            written = _signature(os.fstat(file.fileno()))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return written
