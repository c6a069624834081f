"""The interface of all engines, and the one place that chooses an engine for a model.

An engine belongs to the thread that loaded it: MIOpen handles, streams and captured graphs are per thread, and
PyTorch's own convolution caches are keyed by them. So all methods are called from one thread only, but for ``run`` of
an engine that says ``any_thread``; never two at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from handlers.engines.hostmemory import HostMemory
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec, TensorSpec


class Engine(ABC):
    """Runs one model. ``options`` come from the stores' phase settings (see ``warmup.stores.store.Settings``)."""

    def __init__(self, spec: ModelSpec, folder: Path, options: Mapping[str, str]) -> None:
        self.spec = spec
        self.folder = folder
        self.options = options

    @abstractmethod
    def load(self) -> None:
        """Reads the model; raises ModelError with the reason where it cannot run here as its description demands."""

    @abstractmethod
    def warm(self, shape: Shape) -> None:
        """Makes ``shape`` as fast as it will get: compiles or captures what it needs and runs it once."""

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        """Executes one batch; inputs and outputs are contiguous arrays on the host, bf16 as 16-bit words."""

    @abstractmethod
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs' names, dtypes and dims (axis names where they vary); known after ``load``."""

    slots = 1  # how many executions may be started before the first of them is finished

    def start(self, inputs: Mapping[str, np.ndarray]) -> object:
        """Begins an execution, to be ended by ``finish`` in the order of starting. An engine with one slot runs it."""
        return self.run(inputs)

    any_thread = False  # whether ``run`` may be called from another thread than the one that loaded the model

    joins = False  # whether ``start_joined`` is better than one array made of all requests' rows

    def start_joined(self, parts: Sequence[Tensors], shape: Shape, pad: Mapping[str, float]) -> object:
        """Like ``start`` of ``shape``, for inputs that lie in parts, the rows of one below those of the other; rows
        that are missing at the end are filled with the input's value in ``pad``."""
        return self.start(joined(parts, shape, pad))

    def host_memory(self) -> HostMemory | None:
        """Memory from which the device takes inputs without a copy on the host, where there is such a thing; the same
        whenever it is asked for. Asked for after ``expect``."""
        return None

    def map_memory(self, descriptor: int, offset: int, size: int) -> memoryview | None:
        """Maps ``size`` bytes of a file that another process shares. What lies there may then be an input of ``start``
        and ``start_joined`` as it lies; nobody else may look at it, since that could end the process
        (``handlers.engines.mapping``). None where the device takes no inputs from such memory by itself. Raises
        OSError, ValueError or RuntimeError where it cannot be had. Called on any thread, once the engine is loaded."""
        return None

    def reads_mapped(self, shape: Shape) -> bool:
        """Whether inputs of a warm shape may lie in such memory."""
        return False

    def finish(self, started: object) -> Tensors:
        """Waits for what ``start`` returned, and gives the outputs as ``run`` does."""
        assert isinstance(started, dict)
        return started

    def expect(self, weights: Mapping[Shape, float]) -> Sequence[Shape]:
        """Told before warming which shapes will come, with their shares of the traffic; says in which order."""
        return sorted(weights, key=lambda shape: -weights[shape])

    def note(self, shape: Shape) -> str:
        """How a warm shape runs, where that is not what the model's description asks for; else empty."""
        return ""

    def choice(self, shape: Shape) -> str:
        """What was found best for a warm shape, where the model's description leaves that open; else empty."""
        return ""

    @property
    def graph_bytes(self) -> int:
        """Device memory of captured graphs."""
        return 0

    def close(self) -> None:  # noqa: B027  an engine that holds nothing need not override it
        """Gives back what the engine holds; the engine is of no use afterwards."""


def open_engine(spec: ModelSpec, folder: Path, options: Mapping[str, str]) -> Engine:
    """The engine that ``spec`` asks for, not yet loaded. Frameworks are imported here, and only the one in use."""
    if spec.engine.kind == "onnx":
        from handlers.engines.onnx import OnnxEngine

        return OnnxEngine(spec, folder, options)
    if spec.engine.kind == "torch":
        from handlers.engines.torch import TorchEngine

        return TorchEngine(spec, folder, options)
    from handlers.engines.python import PythonEngine

    return PythonEngine(spec, folder, options)


def joined(parts: Sequence[Tensors], shape: Shape, pad: Mapping[str, float]) -> Tensors:
    """One array for each input of ``shape``, made of the parts' rows and of rows full of the value in ``pad``."""
    whole: Tensors = {}
    for tensor in shape:
        rows = np.concatenate([part[tensor.name] for part in parts])
        missing = (tensor.dims[0] - len(rows), *tensor.dims[1:])
        fill = np.full(missing, pad[tensor.name], tensor.numpy_dtype)
        whole[tensor.name] = np.concatenate([rows, fill]) if missing[0] else rows
    return whole


def example(shape: Shape, seed: int = 0) -> Tensors:
    """Deterministic inputs of a shape: uniform in [0, 1) for floats, small integers else. bf16 as 16-bit words."""
    generator = np.random.default_rng(seed)
    tensors: Tensors = {}
    for tensor in shape:
        if tensor.dtype == "bf16":
            words = generator.random(tensor.dims, dtype=np.float32).view(np.uint32) >> 16
            tensors[tensor.name] = words.astype(np.uint16)
        elif tensor.dtype == "bool":
            tensors[tensor.name] = generator.integers(0, 2, tensor.dims).astype(bool)
        elif tensor.dtype.startswith("fp"):
            tensors[tensor.name] = generator.random(tensor.dims, dtype=np.float32).astype(tensor.numpy_dtype)
        else:
            tensors[tensor.name] = generator.integers(0, 8, tensor.dims).astype(tensor.numpy_dtype)
    return tensors
