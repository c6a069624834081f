"""Host memory between requests and an accelerator: where inputs are put that it cannot read by itself, and where its
outputs arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

_ALIGNMENT = 512  # bytes; what the CUDA allocator gives, so that views in an arena are aligned as tensors are
# From here on PyTorch's threads copy faster than one; below, waking them costs more, and they spin after it.
_THREADED = 4 << 20

Layout = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Arena:
    """Memory that many shapes look at and one execution uses at a time. A view keeps the block alive that it was made
    of, so a larger block may take the place of the last one."""

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        self._allocate = allocate
        self._block: torch.Tensor | None = None

    def views(self, wanted: Layout) -> tuple[torch.Tensor, ...]:
        """Tensors of these dims and dtypes, one after the other."""
        places, size = arranged(wanted)
        if self._block is None or self._block.numel() < size:
            self._block = self._allocate(max(size, _ALIGNMENT))
        block = self._block
        return tuple(
            block[start:end].view(dtype).view(dims) for (start, end), (dims, dtype) in zip(places, wanted, strict=True)
        )


def layout(tensors: Sequence[torch.Tensor]) -> Layout:
    """Dims and dtype of each tensor."""
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)


def arranged(wanted: Layout) -> tuple[list[tuple[int, int]], int]:
    """Where in a block of bytes each tensor begins and ends, aligned, and how many bytes all take."""
    places: list[tuple[int, int]] = []
    start = 0
    for dims, dtype in wanted:
        size = dtype.itemsize
        for dim in dims:
            size *= dim
        places.append((start, start + size))
        start = -(-(start + size) // _ALIGNMENT) * _ALIGNMENT
    return places, start


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """NumPy's view of a tensor on the host; bf16 as 16-bit words."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def source(reads: Callable[[int], bool], place: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Where the device is to read an input that lies in parts: where they are, if it ``reads`` at their addresses, else
    in ``place``."""
    there = [reads(part.data_ptr()) for part in parts]
    row = 0
    found = []
    for part, stays in zip(parts, there, strict=True):
        mine = place if part.shape == place.shape else place[row : row + part.shape[0]]
        row += part.shape[0] if part.dim() else 0
        if not stays:
            _copy(part, mine)
        found.append(part if stays else mine)
    if len(parts) > 1 and not any(there):
        return [place[:row]]
    return found


def _copy(part: torch.Tensor, place: torch.Tensor) -> None:
    if part.nbytes >= _THREADED:
        place.copy_(part)
    else:
        np.copyto(as_array(place), as_array(part))
