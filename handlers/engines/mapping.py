"""Memory that other processes share, read by an accelerator where it lies.

It is theirs: what is in it may change at any time, and where its file is made smaller, a processor that looks at what
is gone gets SIGBUS, which ends the process. So this process never looks at it. An NVIDIA GPU may: its driver pins the
pages, and they stay for as long as the mapping does, whatever becomes of the file (``tests/gpu/test_mapping.py``). By
the source of AMD's driver (amdgpu's userptr, amdgpu_amdkfd_gpuvm.c in Linux), it does not pin such memory but follows
its page tables, so a GPU that reads what is gone faults, and ROCm ends the process: nothing is mapped there.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
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
    status = int(runtime.cudaHostRegister(whole, len(area), _PORTABLE))
    if status:
        with suppress(RuntimeError):  # the driver tells of it once more, to whoever asks next
            torch.zeros(1, device="cuda")
        torch.cuda.check_error(status)
    block = (ctypes.c_ubyte * size).from_address(memory.address)
    weakref.finalize(block, _release, memory, runtime, whole).atexit = False  # the process ends without it
    return memory, memoryview(block).cast("B").toreadonly()


def _release(memory: MappedMemory, runtime: Any, whole: int) -> None:
    runtime.cudaHostUnregister(whole)


def can_map() -> bool:
    """Whether there can be such memory: on NVIDIA's GPUs, and with a NumPy whose read-only arrays PyTorch takes as they
    are (2.1 and later); from an older one it would copy them."""
    if torch.version.hip is not None:
        return False
    array = np.zeros(1, np.uint8)
    array.flags.writeable = False
    try:
        torch.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError):
        return False
    return True
