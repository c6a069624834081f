"""Pinned host memory in large pages.

A processor that copies megabytes into pages of 4 KiB spends much of its time on finding them, in a virtual machine
above all; PyTorch's own pinned memory is in such pages.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np
import torch

from handlers.engines.hostmemory import HostMemory

_PAGE = 2 << 20  # bytes, a large page on x86-64


def pinned(size: int) -> HostMemory:
    """``size`` bytes that accelerators read by themselves, in large pages where the kernel has some."""
    size = -(-size // _PAGE) * _PAGE
    area = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has small pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(area, np.uint8)
    start = -whole.ctypes.data % _PAGE
    part = whole[start : start + size]
    part.fill(0)  # so that all pages are there
    address = part.ctypes.data
    runtime: Any = torch.cuda.cudart()
    torch.cuda.check_error(int(runtime.cudaHostRegister(address, size, 0)))
    weakref.finalize(part, runtime.cudaHostUnregister, address).atexit = False  # the process ends without it
    return HostMemory(address, size, part)
