"""Captured graphs: one CUDA or HIP graph for each warm shape of a PyTorch model, replayed instead of launching kernels.

Each slot has graphs of its own, in a memory pool and on a stream of its own: replays of two slots run at the same time,
and the inputs of one travel while the other computes. A small batch leaves most of a large device idle, so two replays
take little longer than one. The thread that owns them waits for events of a slot and never for the whole device.

A shape that cannot be captured, whose replay differs from eager execution, or for which there is no memory left, gets
no graph: that is found out while it is warmed, never while it is served.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from weakref import ref

import numpy as np
import torch

from handlers.engines.closeness import difference, telling
from handlers.engines.compiling import Forward
from handlers.engines.hostmemory import HostMemory
from handlers.engines.mapping import MappedMemory, map_memory
from handlers.engines.memory import Need, admitted, scaled
from handlers.engines.staging import Arena, as_array, layout, source
from handlers.shapes import Shape

log = logging.getLogger("preheat")

SLOTS = 2
EAGERLY = "runs eagerly: "  # begins why a shape has no graph
_TIMED = 9  # replays of which the median is taken
# Capturing forbids synchronising the device anywhere in the process, so models that warm side by side take turns.
_ONE_CAPTURE = threading.Lock()


@dataclass(frozen=True)
class _Side:
    """One shape in one slot: a graph, the tensors at its fixed addresses, and its views of the slot's host memory, of
    which ``results`` are NumPy's."""

    graph: torch.cuda.CUDAGraph
    pool: tuple[int, ...]
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    going: tuple[torch.Tensor, ...]
    returned: tuple[torch.Tensor, ...]
    results: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Replay:
    """An execution on its way: in which slot, and ``sources``, which must stay while the device reads them."""

    side: _Side
    slot: int
    sources: object


class _Slot:
    """What the graphs of one slot share. ``going`` and ``coming`` are on the host."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.done = torch.cuda.Event()
        self.pool = torch.cuda.graph_pool_handle()
        self.going, self.coming = Arena(_pinned), Arena(_pinned)


class Graphs:
    """The graphs of one model. All methods are called on the thread that made the object, but for ``map_memory``.

    ``budget`` is how many bytes the graphs may take, None for no limit.
    """

    def __init__(self, device: torch.device, forward: Forward, precision: torch.dtype, budget: int | None) -> None:
        self._device = device
        self._forward = forward
        self._precision = precision
        self._budget = budget
        self._slots = tuple(_Slot(device) for _ in range(SLOTS))
        self._free = [*reversed(range(SLOTS))]  # the last one used is taken again: its memory is in the caches
        self._captured: dict[object, tuple[_Side, ...]] = {}
        self._weights: Mapping[Shape, float] = {}
        self._needs: dict[Shape, Need] = {}
        self._readable: tuple[ref[HostMemory | MappedMemory], ...] = ()  # replaced when it changes, under the lock
        self._lock = threading.Lock()
        torch.cuda.set_stream(self._slots[0].stream)  # of this thread, for what runs eagerly

    def __contains__(self, key: object) -> bool:
        return key in self._captured

    @property
    def bytes(self) -> int:
        """Device memory of the graphs: their pools, and the inputs that lie outside of them."""
        sides = [side for sides in self._captured.values() for side in sides]
        pools = {side.pool for side in sides}
        return sum(tensor.nbytes for side in sides for tensor in side.inputs) + sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) in pools
        )

    def expect(self, weights: Mapping[Shape, float]) -> None:
        """Says which shapes will be warmed, with their shares of the traffic: what the budget is divided by."""
        self._weights = weights

    def reads(self, memory: HostMemory | MappedMemory) -> None:
        """Inputs in this memory are read by the device where they lie, for as long as somebody else keeps it."""
        with self._lock:
            self._readable = (*(known for known in self._readable if known() is not None), ref(memory))

    def map_memory(self, descriptor: int, offset: int, size: int) -> memoryview:
        """See ``Engine.map_memory``."""
        with _ONE_CAPTURE, torch.cuda.device(self._device):
            memory, view = map_memory(descriptor, offset, size)
            self.reads(memory)
        return view

    def mapped(self, address: int) -> bool:
        """Whether an address is in memory that only the device may look at."""
        return isinstance(self._holder(address), MappedMemory)

    def capture(self, key: object, shape: Shape, inputs: Sequence[torch.Tensor], variant: Forward | None = None) -> str:
        """Makes a graph of ``shape`` from example inputs on the host; says why not where there is none.

        ``variant`` is captured in place of the model, to whose eager outputs it must be close.
        """
        with _ONE_CAPTURE, torch.inference_mode():
            why = self._try(key, shape, inputs, variant or self._forward)
            if why and not self._captured:
                for slot in self._slots:  # PyTorch takes no graph into a pool of which the last one is gone
                    slot.pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()  # what eager execution needed for this shape and the graph does not
        return f"{EAGERLY}{why}" if why else ""

    def _try(self, key: object, shape: Shape, inputs: Sequence[torch.Tensor], function: Forward) -> str:
        try:
            expected, need = self._rehearse(shape, [tensor.to(self._device) for tensor in inputs])
            if shape not in self._chosen(need):
                return f"graph_memory allows {self._budget} bytes, other shapes save more with it"
            sides = tuple(self._record(slot, inputs, function) for slot in self._slots)
        except Exception as error:  # a rewritten or compiled model may fail in any way where the model does not
            return f"no graph: {type(error).__name__}: {_first_line(error)}"
        for slot, side in zip(self._slots, sides, strict=True):
            with torch.cuda.stream(slot.stream):
                side.graph.replay()
            slot.stream.synchronize()
            wrong = difference(expected, side.outputs, self._precision)
            if wrong:
                return f"the graph's {wrong}"
        if not telling(expected):
            log.warning("%s: the example's outputs are all the same, so little was compared", shape)
        self._captured[key] = sides
        if self._budget is not None and self.bytes > self._budget:
            del self._captured[key]
            return f"its graph would pass graph_memory, {self._budget} bytes"
        return ""

    def seconds(self, key: object) -> float:
        """How long a replay takes, the median of a few; infinite where there is no graph."""
        if key not in self._captured:
            return math.inf
        graph, stream = self._captured[key][0].graph, self._slots[0].stream
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(_TIMED + 1)]
        with _ONE_CAPTURE, torch.cuda.stream(stream):
            graph.replay()
            marks[0].record(stream)
            for mark in marks[1:]:
                graph.replay()
                mark.record(stream)
            stream.synchronize()
        return statistics.median(before.elapsed_time(after) for before, after in pairwise(marks)) / 1e3

    def keep(self, key: object, found: object) -> None:
        """Lets the graphs of ``found`` take the place of those of ``key``."""
        with _ONE_CAPTURE:  # the end of a graph may synchronise the device
            self._captured[key] = self._captured.pop(found)

    def drop(self, key: object) -> None:
        """Gives up the graphs of ``key``, if there are any."""
        with _ONE_CAPTURE:
            self._captured.pop(key, None)

    def start(self, key: object, parts: Sequence[Sequence[torch.Tensor]], pad: Sequence[float] = ()) -> Replay:
        """Sends the inputs on their way and the replay after them; at most SLOTS may be started and not finished.

        An input may lie in several parts, the rows of one below those of the other; rows that are missing are filled
        with the input's value in ``pad``.
        """
        sides = self._captured[key]
        number = self._free.pop()
        try:
            slot, side = self._slots[number], sides[number]
            with torch.inference_mode(), torch.cuda.stream(slot.stream):
                columns = zip(*parts, strict=True)
                sources = [source(self._reads, going, part) for going, part in zip(side.going, columns, strict=True)]
                for index, (target, pieces) in enumerate(zip(side.inputs, sources, strict=True)):
                    filled = _fill(target, pieces)
                    if target.dim() and filled < target.shape[0]:
                        target[filled:].fill_(pad[index])
                side.graph.replay()
                for output, place in zip(side.outputs, side.returned, strict=True):
                    place.copy_(output, non_blocking=True)
                slot.done.record(slot.stream)
        except BaseException:
            self._free.append(number)
            raise
        return Replay(side, number, sources)

    def finish(self, replay: Replay) -> list[np.ndarray]:
        """Waits for an execution and copies its outputs out of the staging memory."""
        try:
            self._slots[replay.slot].done.synchronize()
            return [result.copy() for result in replay.side.results]
        finally:
            self._free.append(replay.slot)

    def close(self) -> None:
        """Gives back graphs and staging memory."""
        for slot in self._slots:
            slot.stream.synchronize()
        self._captured.clear()
        self._readable = ()
        del self._forward
        torch.cuda.set_stream(torch.cuda.default_stream(self._device))
        torch.cuda.empty_cache()

    def _reads(self, address: int) -> bool:
        return self._holder(address) is not None

    def _holder(self, address: int) -> HostMemory | MappedMemory | None:
        memories = (known() for known in self._readable)
        return next((memory for memory in memories if memory is not None and memory.holds(address)), None)

    def _rehearse(self, shape: Shape, inputs: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], Need]:
        """Runs the model twice: the outputs, and what memory its graphs will take."""
        self._forward(*inputs)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        expected = self._forward(*inputs)
        self._slots[0].stream.synchronize()
        work = torch.cuda.max_memory_allocated(self._device) - before
        own = sum(tensor.nbytes for tensor in (*inputs, *expected))
        need = Need(shape, self._weights.get(shape, 1.0), SLOTS * work, SLOTS * own)
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

    def _record(self, slot: _Slot, inputs: Sequence[torch.Tensor], function: Forward) -> _Side:
        """One slot's graph. Runs the function twice before, on the slot's stream: libraries choose their algorithms and
        get their workspaces then, which they could not while capturing."""
        with torch.cuda.stream(slot.stream):
            static = tuple(tensor.to(self._device) for tensor in inputs)
            for _ in range(2):
                function(*static)
            slot.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(pool=slot.pool, capture_error_mode="thread_local")
                try:
                    outputs = function(*static)
                finally:
                    graph.capture_end()
            except BaseException:
                self._recover(slot)
                raise
        returned = slot.coming.views(layout(outputs))
        return _Side(
            graph=graph,
            pool=tuple(slot.pool),
            inputs=static,
            outputs=outputs,
            going=slot.going.views(layout(static)),
            returned=returned,
            results=tuple(map(as_array, returned)),
        )

    def _recover(self, slot: _Slot) -> None:
        """A failed capture leaves its pool and the device's random generator waiting for an end that never comes. New
        ones take their place; the end is told to the allocator, which would give no memory back until then."""
        with suppress(RuntimeError):  # where the capture failed so early, or so late, that the allocator has ended it
            torch._C._cuda_endAllocateToPool(slot.stream.device.index, slot.pool)  # what CUDAGraph.capture_end skips
        slot.pool = torch.cuda.graph_pool_handle()
        fresh = torch.Generator(self._device)
        fresh.seed()
        torch.cuda.default_generators[slot.stream.device.index].graphsafe_set_state(fresh.graphsafe_get_state())


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _fill(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> int:
    """Copies the parts one below the other; how many rows that makes."""
    if len(parts) == 1 and parts[0].shape == target.shape:
        target.copy_(parts[0], non_blocking=True)
        return target.shape[0] if target.dim() else 0
    row = 0
    for part in parts:
        target[row : row + part.shape[0]].copy_(part, non_blocking=True)
        row += part.shape[0]
    return row


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
