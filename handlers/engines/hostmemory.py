"""Host memory that an accelerator reads by itself (pinned), given out in blocks.

A server receives tensors straight into it, and the accelerator fetches them from there: nothing on the host copies
them. Pinning takes milliseconds, so all of it is pinned once, before any request.
"""

from __future__ import annotations

import ctypes
import weakref
from bisect import bisect_left
from collections import deque

_ALIGNMENT = 4096  # bytes; blocks begin at pages, as the tensors of other allocators of large blocks do


class HostMemory:
    """Blocks of one piece of memory at ``address``. ``take`` is called on one thread; blocks may end on any.

    ``keep`` holds the memory and is let go with this object.
    """

    def __init__(self, address: int, size: int, keep: object) -> None:
        self._address = address
        self._size = size
        self._keep = keep
        self._free: list[tuple[int, int]] = [(0, size)]  # start and size, ascending, no two adjacent
        self._ended: deque[tuple[int, int]] = deque()

    def take(self, size: int) -> memoryview | None:
        """Writable memory of ``size`` bytes, which is free again once nothing refers to it; None where there is no
        room for it."""
        while self._ended:
            self._merge(*self._ended.popleft())
        taken = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        for index, (start, free) in enumerate(self._free):
            if free >= taken:
                self._free[index : index + 1] = [(start + taken, free - taken)] if free > taken else []
                block = (ctypes.c_ubyte * size).from_address(self._address + start)
                weakref.finalize(block, _end, self._ended, (start, taken), self._keep).atexit = False
                return memoryview(block).cast("B")
        return None

    def holds(self, address: int) -> bool:
        """Whether an address is in this memory."""
        return self._address <= address < self._address + self._size

    def _merge(self, start: int, size: int) -> None:
        at = bisect_left(self._free, (start, 0))
        if at < len(self._free) and self._free[at][0] == start + size:
            size += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == start:
            before, more = self._free.pop(at - 1)
            start, size, at = before, size + more, at - 1
        self._free.insert(at, (start, size))


def _end(ended: deque[tuple[int, int]], block: tuple[int, int], keep: object) -> None:
    """A block's end may come in the middle of ``take``, on the same thread: it is only noted."""
    ended.append(block)
