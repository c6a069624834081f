"""Memory that other processes share, read by an accelerator where it lies.

It is theirs: what is in it may change at any time, and where its file is made smaller, a processor that looks at what
is gone gets SIGBUS, which ends the process. So this process never looks at it. The device may: its pages are pinned,
and stay for as long as the mapping does, whatever becomes of the file (``tests/gpu/test_mapping.py``).
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import Any

import torch

_PORTABLE = 1  # cudaHostRegisterPortable: for every context of the process


class MappedMemory:
    """Where a mapping lies. It stays until nothing refers to the ``memoryview`` that ``map_memory`` gave with it."""

    def __init__(self, area: mmap.mmap, start: int) -> None:
        self._area = area
        self._size = len(area) - start
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(area)) + start

    def holds(self, address: int) -> bool:
        """Whether an address is in this memory."""
        return self.address <= address < self.address + self._size


def map_memory(descriptor: int, offset: int, size: int) -> tuple[MappedMemory, memoryview]:
    """``size`` bytes of a file from ``offset`` on, for the device only. Raises OSError, ValueError or RuntimeError, as
    the kernel or the driver will have it."""
    start = offset % mmap.PAGESIZE
    area = mmap.mmap(descriptor, start + size, mmap.MAP_SHARED, offset=offset - start)
    memory = MappedMemory(area, start)
    runtime: Any = torch.cuda.cudart()
    whole = memory.address - start
    torch.cuda.check_error(int(runtime.cudaHostRegister(whole, len(area), _PORTABLE)))
    block = (ctypes.c_ubyte * size).from_address(memory.address)
    weakref.finalize(block, _release, memory, runtime, whole).atexit = False  # the process ends without it
    return memory, memoryview(block).cast("B").toreadonly()


def _release(memory: MappedMemory, runtime: Any, whole: int) -> None:
    runtime.cudaHostUnregister(whole)
