"""Captured graphs: one CUDA or HIP graph for each warm shape of a PyTorch model, replayed instead of launching kernels.

All graphs of a model share one memory pool, run on one stream, and belong to one thread. Inputs go through pinned
staging memory of which there are two slots, so that the next execution's inputs travel while the last one still runs;
the thread waits for events of its own stream and never for the whole device.

A shape that cannot be captured, whose replay differs from eager execution, or for which there is no memory left, gets
no graph: that is found out while it is warmed, never while it is served.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from handlers.engines.closeness import difference
from handlers.engines.memory import Need, admitted, scaled
from handlers.shapes import Shape

SLOTS = 2
_ALIGNMENT = 512  # bytes; what the CUDA allocator gives, so that views in an arena are aligned as tensors are
# Capturing forbids synchronising the device anywhere in the process, so models that warm side by side take turns.
_ONE_CAPTURE = threading.Lock()

Layout = tuple[tuple[tuple[int, ...], torch.dtype], ...]
Forward = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class _Side:
    """One slot's staging memory as one shape sees it. ``staged`` is on the device; ``results`` are NumPy's views of
    ``returned``."""

    pinned: tuple[torch.Tensor, ...]
    staged: tuple[torch.Tensor, ...]
    returned: tuple[torch.Tensor, ...]
    results: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class _Captured:
    """A graph, the tensors at its fixed addresses, and its view of each slot."""

    graph: torch.cuda.CUDAGraph
    pool: tuple[int, ...]
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    sides: tuple[_Side, ...]


@dataclass(frozen=True)
class Replay:
    """An execution on its way: which graph, in which slot."""

    captured: _Captured
    slot: int


class Graphs:
    """The graphs of one model. All methods are called on the thread that made the object.

    ``budget`` is how many bytes the graphs may take, None for no limit.
    """

    def __init__(self, device: torch.device, forward: Forward, precision: torch.dtype, budget: int | None) -> None:
        self._device = device
        self._forward = forward
        self._precision = precision
        self._budget = budget
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._copies = torch.cuda.Stream(device)
        self._copied = tuple(torch.cuda.Event() for _ in range(SLOTS))
        self._done = tuple(torch.cuda.Event() for _ in range(SLOTS))
        self._free = deque(range(SLOTS))
        self._captured: dict[object, _Captured] = {}
        self._weights: Mapping[Shape, float] = {}
        self._needs: dict[Shape, Need] = {}
        pinned = [_Arena(lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True)) for _ in range(2 * SLOTS)]
        self._going, self._coming = pinned[:SLOTS], pinned[SLOTS:]
        self._staging = [_Arena(lambda size: torch.empty(size, dtype=torch.uint8, device=device)) for _ in range(SLOTS)]
        torch.cuda.set_stream(self._stream)  # of this thread: eager executions follow the replays in order

    def __contains__(self, key: object) -> bool:
        return key in self._captured

    @property
    def bytes(self) -> int:
        """Device memory of the graphs: their pool, and the inputs that lie outside of it."""
        own = sum(tensor.nbytes for captured in self._captured.values() for tensor in captured.inputs)
        pools = {captured.pool for captured in self._captured.values()}
        return own + sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) in pools
        )

    def expect(self, weights: Mapping[Shape, float]) -> None:
        """Says which shapes will be warmed, with their shares of the traffic: what the budget is divided by."""
        self._weights = weights

    def capture(self, key: object, shape: Shape, inputs: Sequence[torch.Tensor]) -> str:
        """Makes a graph of ``shape`` from example inputs on the host; says why not where there is none.

        The model must have run eagerly in this shape before.
        """
        with _ONE_CAPTURE, torch.inference_mode():
            static = tuple(torch.empty_like(tensor, device=self._device) for tensor in inputs)
            for tensor, value in zip(static, inputs, strict=True):
                tensor.copy_(value)
            try:
                expected, need = self._rehearse(shape, static)
                if shape not in self._chosen(need):
                    return f"runs eagerly: graph_memory allows {self._budget} bytes, other shapes save more with it"
                captured = self._record(static)
            except RuntimeError as error:
                return f"runs eagerly: no graph: {type(error).__name__}: {_first_line(error)}"
            captured.graph.replay()
            wrong = difference(expected, captured.outputs, self._precision)
            if wrong:
                return f"runs eagerly: the graph's {wrong}"
            self._captured[key] = captured
            if self._budget is not None and self.bytes > self._budget:
                del self._captured[key]
                return f"runs eagerly: its graph would pass graph_memory, {self._budget} bytes"
            torch.cuda.empty_cache()  # what eager execution needed for this shape and the graph does not
        return ""

    def start(self, key: object, inputs: Sequence[torch.Tensor]) -> Replay:
        """Sends the inputs on their way and the replay after them; at most SLOTS may be started and not finished."""
        captured = self._captured[key]
        slot = self._free.popleft()
        try:
            side = captured.sides[slot]
            with torch.inference_mode():
                _copy(inputs, side.pinned)  # several threads at once where a tensor is large
                self._enqueue(captured, side, slot)
        except BaseException:
            self._free.append(slot)
            raise
        return Replay(captured, slot)

    def finish(self, replay: Replay) -> list[np.ndarray]:
        """Waits for an execution and copies its outputs out of the staging memory."""
        try:
            self._done[replay.slot].synchronize()
            return [result.copy() for result in replay.captured.sides[replay.slot].results]
        finally:
            self._free.append(replay.slot)

    def close(self) -> None:
        """Gives back graphs and staging memory."""
        self._stream.synchronize()
        self._captured.clear()
        torch.cuda.set_stream(torch.cuda.default_stream(self._device))
        torch.cuda.empty_cache()

    def _enqueue(self, captured: _Captured, side: _Side, slot: int) -> None:
        if len(self._free) == SLOTS - 1:  # nothing else is on its way: there is nothing to overlap with
            _copy(side.pinned, captured.inputs)
        else:
            with torch.cuda.stream(self._copies):
                _copy(side.pinned, side.staged)
                self._copied[slot].record(self._copies)
            self._stream.wait_event(self._copied[slot])
            _copy(side.staged, captured.inputs)
        captured.graph.replay()
        _copy(captured.outputs, side.returned)
        self._done[slot].record(self._stream)

    def _rehearse(self, shape: Shape, static: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], Need]:
        """Runs the model twice on the graph's own stream: libraries choose their algorithms before capture, where they
        could not. The outputs, and what memory it took."""
        self._forward(*static)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        expected = self._forward(*static)
        self._stream.synchronize()
        work = torch.cuda.max_memory_allocated(self._device) - before
        own = sum(tensor.nbytes for tensor in (*static, *expected))
        need = Need(shape, self._weights.get(shape, 1.0), work, own)
        self._needs[shape] = need
        return expected, need

    def _chosen(self, need: Need) -> frozenset[Shape]:
        if self._budget is None:
            return frozenset((need.shape,))
        others = [
            self._needs.get(shape) or scaled(need, shape, weight)
            for shape, weight in self._weights.items()
            if shape != need.shape
        ]
        return admitted([need, *others], self._budget)

    def _record(self, static: tuple[torch.Tensor, ...]) -> _Captured:
        graph, pool = torch.cuda.CUDAGraph(), self._pool
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = self._forward(*static)
            finally:
                graph.capture_end()
        except BaseException:
            self._recover()
            raise
        sides = tuple(self._side(slot, static, outputs) for slot in range(SLOTS))
        return _Captured(graph, tuple(pool), static, outputs, sides)

    def _recover(self) -> None:
        """A failed capture leaves its pool and the device's random generator waiting for an end that never comes: new
        ones take their place."""
        self._pool = torch.cuda.graph_pool_handle()
        fresh = torch.Generator(self._device)
        fresh.seed()
        torch.cuda.default_generators[self._stream.device.index].graphsafe_set_state(fresh.graphsafe_get_state())

    def _side(self, slot: int, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> _Side:
        going, coming = layout(inputs), layout(outputs)
        pinned, returned = self._going[slot].views(going), self._coming[slot].views(coming)
        return _Side(
            pinned=pinned,
            staged=self._staging[slot].views(going),
            returned=returned,
            results=tuple(map(as_array, returned)),
        )


class _Arena:
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


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
