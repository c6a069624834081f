"""Example tensors in shared memory, for load on a server on the same host that takes them from there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple

import numpy as np

_ALIGNMENT = 4096  # bytes, of each dtype's values


class SharedExamples(NamedTuple):
    """The region's name, the key and size of its memory, and where in it the values of each dtype begin."""

    region: str
    key: str
    size: int
    offsets: Mapping[str, int]


@contextmanager
def shared_examples(values: Mapping[str, np.ndarray]) -> Iterator[SharedExamples]:
    """Has the values of each dtype in a new object of shared memory, until the end."""
    offsets: dict[str, int] = {}
    size = 0
    for dtype, array in values.items():
        offsets[dtype] = size
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    memory = SharedMemory(create=True, size=size)
    try:
        assert memory.buf is not None
        for dtype, array in values.items():
            memory.buf[offsets[dtype] : offsets[dtype] + array.nbytes] = array.tobytes()
        yield SharedExamples(f"preheat-bench-{os.getpid()}-{memory.name}", f"/{memory.name}", size, offsets)
    finally:
        memory.close()
        memory.unlink()
