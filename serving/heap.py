"""Memory that is given back by the allocator is faulted in again, page by page, by the next request.

The C library gives the memory of large blocks back to the kernel as soon as they are freed, and a server allocates such
blocks for every tensor: each of their pages then costs a page fault again, more than reading the tensor does. It is
told to keep what it has, up to what one burst may leave behind.
"""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger("preheat")

# glibc's malloc.h; other C libraries have no mallopt, or one that knows no such parameter and returns 0.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_BLOCK = 32 << 20  # bytes; glibc's own upper bound of the threshold (HEAP_MAX / 2 on 64 bits)
_KEPT = 256 << 20  # bytes


def keep_memory() -> bool:
    """Has the allocator of this process keep freed memory for its next use; False where that cannot be had."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _KEPT))
