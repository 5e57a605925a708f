"""Chunks of a body as they stand on the wire, where what comes in one piece is nothing but whole chunks.

Source: RFC 9112 §7.1. What is spelt otherwise than we would (extensions, trailers, leading zeros) is left to a parser.
"""

from __future__ import annotations

import functools
from typing import Final

# Of a chunk's size, with its line's end.
_LONGEST_SIZE: Final = 8
# Of more, it is cheaper to read it than to look for where each chunk ends.
MOST_BYTES: Final = 4096
LAST_CHUNK: Final = b"0\r\n\r\n"


def one_chunk(data: bytes) -> int:
    """Return the size of the chunk that data is, 0 where it is not just one; that a line's end follows is known."""
    stop = data.find(b"\r\n", 0, _LONGEST_SIZE)
    size = _size(data[:stop])
    return size if stop + size + 4 == len(data) else 0


def whole_chunks(data: bytes) -> tuple[list[bytes], bool] | None:
    """Return what is in each chunk that data is, and whether the body ends after these; None where it is aught else."""
    end = len(data)
    if end > MOST_BYTES:
        return None
    contents: list[bytes] = []
    at = 0
    while at < end:
        stop = data.find(b"\r\n", at, at + _LONGEST_SIZE)
        told = data[at:stop]
        if stop < 0 or not told.isalnum():
            return None
        size = _size(told)
        at = stop + size + 4
        if data[at - 2 : at] != b"\r\n":
            return None
        if not size:
            return (contents, True) if at == end and told == b"0" else None
        contents.append(data[stop + 2 : at - 2])
    return (contents, False) if contents else None


@functools.lru_cache(maxsize=4096)
def _size(told: bytes) -> int:
    """Return the size that a chunk tells, 0 where it is the last one, or we would spell it otherwise."""
    try:
        size = int(told, 16)
    except ValueError:
        return 0
    return size if told == b"%x" % size else 0
