"""How much of what is freed the C library keeps for the next request, where it is glibc."""

from __future__ import annotations

import ctypes
import os
from typing import Final

# What is freed of the heap's end is kept up to this; a body of a megabyte is as quick as one of a kilobyte then.
KEPT_BYTES: Final = 16 * 1024 * 1024
# Larger pieces are given back at once. Source: mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX of 64 bits.
LARGE_BYTES: Final = 32 * 1024 * 1024
# Source: glibc's malloc.h
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_SETTINGS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed() -> bool:
    """Keep what is freed, and return whether that was told to the C library: not where the operator told it something.

    By default it gives 128 KiB and more back to the kernel each time, which then has to be asked for it again, page by
    page: for a request of a megabyte a third of all that it takes.
    """
    if any(name in os.environ for name in _SETTINGS) or not _is_glibc():
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) and library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False
