"""Runs PyTorch models: ``torch.export`` programs, TorchScript, or a class with safetensors or random weights.

``eager`` calls the module as it is. ``compile`` gives every warmed shape a compiled callable of its own, so that
neither a guard nor dynamo's limit on recompiles can make a request pay; shapes that were never warmed run eagerly. The
option ``torch.first_call: compile`` compiles them in their first request instead, as a server does that warms nothing.
With ``dynamic_shapes`` all shapes have one callable, with code for all of them and some more for what they differ in (a
batch of one, say): it is compiled a few times in all, while warming.
``graph`` captures every warmed shape (``handlers.engines.graph``) and replays it; other shapes run eagerly.
``compile+graph`` captures the compiled callable, or the module itself for shapes where that is not close enough.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import torch

from handlers.engines.compiling import Compiler
from handlers.engines.engine import Engine, example, joined
from handlers.engines.graph import EAGERLY, SLOTS, Graphs, Replay
from handlers.engines.hostmemory import HostMemory
from handlers.engines.layout import quicker
from handlers.engines.mapping import can_map
from handlers.engines.memory import largest_first
from handlers.engines.module import DTYPES, Forward, build_module, first_line, forward
from handlers.engines.pinning import pinned
from handlers.engines.staging import as_array
from handlers.errors import InvalidInput, ModelError, OutOfDeviceMemory
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.spec import TensorSpec

log = logging.getLogger("preheat")

Key = tuple[tuple[tuple[int, ...], np.dtype], ...]


# Pinned memory in which a server receives inputs: for the largest input of this many clients, within bounds (bytes).
_CLIENTS = 64
_LEAST_HOST_MEMORY, _MOST_HOST_MEMORY = 16 << 20, 256 << 20
_REMEMBERED = 4096  # shapes known to run; more than a plan can hold need not be remembered


class TorchEngine(Engine):
    """Runs one PyTorch model on one device; the engine's option ``torch.device`` overrides the choice of device."""

    def load(self) -> None:
        engine = self.spec.engine
        if not self.spec.outputs:
            raise ModelError(f"{self.spec.name}: outputs: a torch model must name its outputs, with dtype and dims")
        if engine.compiles and engine.source.endswith(".ts"):
            raise ModelError(
                f"{self.spec.name}: engine.execution: TorchScript runs eagerly only; export a .pt2 to compile"
            )
        if engine.threads:
            torch.set_num_threads(engine.threads)
        self.device = choose_device(self.options.get("torch.device", "auto"))
        if engine.captures and self.device.type != "cuda":
            raise ModelError(
                f"{self.spec.name}: engine.execution: {engine.execution} needs a GPU; use eager or compile"
            )
        if engine.fuse_activations and torch.version.hip is not None:
            raise ModelError(
                f"{self.spec.name}: engine.fuse_activations: these are cuDNN's kernels; MIOpen makes such kernels from "
                "plans of which no database has a record"
            )
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = engine.tf32
            torch.backends.cudnn.allow_tf32 = engine.tf32
        self._names = tuple(tensor.name for tensor in self.spec.inputs)
        self._dtypes = tuple(tensor.dtype for tensor in self.spec.inputs)
        layout, *others = engine.layouts
        self._forward = self._built(layout)
        self._rewritten = self._built(layout, rewrite=True) if engine.rewritten else None
        rewrites = (True, False) if engine.rewritten else (False,)
        self._others = tuple(self._built(other, rewrite) for other in others for rewrite in rewrites)
        self._compiled: dict[Key, Forward] = {}
        self._compile = Compiler(engine.dynamic_shapes)
        self._order: tuple[Shape, ...] = ()
        self._begun: set[Shape] = set()  # those of the order that were compiled, or tried
        self._known: set[Key] = set()
        self._compiles = engine.compiles
        self._compiles_late = self.options.get("torch.first_call") == "compile"
        self._notes: dict[Shape, str] = {}
        self._choices: dict[Shape, str] = {}
        self._graphs = self._open_graphs() if engine.captures else None
        self._host_memory: HostMemory | None = None
        self._largest = 0
        self.slots = SLOTS if self._graphs is not None else 1
        self.joins = self._graphs is not None

    def warm(self, shape: Shape) -> None:
        inputs = example(shape)
        key = self._key(inputs)
        with self._searching():
            self._compile_before(shape)
            self._run_compiled(key, inputs)
            for variant in (self._rewritten, *self._others):
                if variant is not None and self._searches and key not in self._compiled:
                    with torch.inference_mode(), suppress(Exception):  # which its capture meets too, and tells
                        variant(*(tensor.to(self.device) for tensor in self._on_host(inputs)))
        if self._graphs is not None and key not in self._graphs:
            self._notes[shape] = self._capture(self._graphs, key, shape, self._on_host(inputs))

    def _compile_before(self, shape: Shape) -> None:
        """Which code a shape gets of a callable that shapes share depends on which of them came before. So those of the
        plan come in one order in every process, whichever of them is asked for first."""
        for earlier in self._order[: self._order.index(shape) if shape in self._order else None]:
            if earlier not in self._begun:
                self._begun.add(earlier)
                inputs = example(earlier)
                with suppress(Exception):  # which its own warming meets too, and tells
                    self._run_compiled(self._key(inputs), inputs)
        self._begun.add(shape)

    def _run_compiled(self, key: Key, inputs: Tensors) -> None:
        if self._compiles and key not in self._compiled:
            self._compiled[key] = self._compile(self._rewritten or self._forward)
        self.run(inputs)

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        return self.finish(self.start(inputs))

    def start(self, inputs: Mapping[str, np.ndarray]) -> object:
        key = self._key(inputs)
        if self._graphs is not None and key in self._graphs:
            return self._graphs.start(key, [self._on_host(inputs)])
        return self._run(key, inputs)

    def start_joined(self, parts: Sequence[Tensors], shape: Shape, pad: Mapping[str, float]) -> object:
        key = tuple((tensor.dims, tensor.numpy_dtype) for tensor in shape)
        if self._graphs is not None and key in self._graphs:
            values = [pad[name] for name in self._names]
            return self._graphs.start(key, [self._on_host(part) for part in parts], values)
        return self.start(joined([self._fetched(part) for part in parts], shape, pad))

    def host_memory(self) -> HostMemory | None:
        if self._graphs is not None and self._host_memory is None and self._largest:
            size = min(max(_CLIENTS * self._largest, _LEAST_HOST_MEMORY), _MOST_HOST_MEMORY)
            self._host_memory = pinned(size)
            self._graphs.reads(self._host_memory)
        return self._host_memory

    def map_memory(self, descriptor: int, offset: int, size: int) -> memoryview | None:
        graphs = self._graphs
        return graphs.map_memory(descriptor, offset, size) if graphs is not None and can_map() else None

    def reads_mapped(self, shape: Shape) -> bool:
        key = tuple((tensor.dims, tensor.numpy_dtype) for tensor in shape)
        return self._graphs is not None and key in self._graphs

    def finish(self, started: object) -> Tensors:
        if self._graphs is None or not isinstance(started, Replay):
            return super().finish(started)
        results = self._graphs.finish(started)
        return {tensor.name: array for tensor, array in zip(self.spec.outputs, results, strict=True)}

    def expect(self, weights: Mapping[Shape, float]) -> Sequence[Shape]:
        if self.spec.engine.dynamic_shapes:
            self._order = tuple(largest_first(weights))
        if self._graphs is None:
            return self._order or super().expect(weights)
        self._graphs.expect(weights)
        sizes = [sum(t.elements * t.numpy_dtype.itemsize for t in shape) for shape in weights]
        self._largest = max(sizes, default=0)
        return largest_first(weights)

    def note(self, shape: Shape) -> str:
        return self._notes.get(shape, "")

    def choice(self, shape: Shape) -> str:
        return self._choices.get(shape, "")

    @property
    def graph_bytes(self) -> int:
        return self._graphs.bytes if self._graphs is not None else 0

    def _run(self, key: Key, inputs: Mapping[str, np.ndarray]) -> Tensors:
        function = self._compiled.get(key) or self._unwarmed(key)
        try:
            with torch.inference_mode():
                tensors = [tensor.to(self.device, non_blocking=True) for tensor in self._on_host(inputs)]
                results = [to_array(tensor) for tensor in function(*tensors)]
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()  # what is cached may be in pieces of the wrong size
                raise OutOfDeviceMemory(f"model {self.spec.name!r}: the accelerator has no memory for this") from error
            if key in self._known:
                raise
            self._compiled.pop(key, None)
            raise self._explained(error, inputs) from error
        if key not in self._known and len(self._known) < _REMEMBERED:
            self._known.add(key)
        return {tensor.name: array for tensor, array in zip(self.spec.outputs, results, strict=True)}

    def _fetched(self, inputs: Tensors) -> Tensors:
        """The same where the processor may look at it."""
        if self._graphs is None:
            return inputs
        tensors = zip(self._names, self._on_host(inputs), strict=True)
        return {
            name: to_array(tensor.to(self.device)) if self._graphs.mapped(tensor.data_ptr()) else inputs[name]
            for name, tensor in tensors
        }

    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.spec.outputs

    def close(self) -> None:
        self._compiled.clear()
        del self._forward, self._compile
        self._rewritten, self._others, self._host_memory = None, (), None
        if self._graphs is not None:
            self._graphs.close()
            self._graphs = None

    def _built(self, channels_last: bool, rewrite: bool = False) -> Forward:
        module = build_module(self.spec, self.folder, rewrite, channels_last)
        return forward(module.to(self.device), self.spec, channels_last)

    def _key(self, inputs: Mapping[str, np.ndarray]) -> Key:
        return tuple((inputs[name].shape, inputs[name].dtype) for name in self._names)

    def _on_host(self, inputs: Mapping[str, np.ndarray]) -> list[torch.Tensor]:
        return [to_tensor(inputs[name], dtype) for name, dtype in zip(self._names, self._dtypes, strict=True)]

    def _capture(self, graphs: Graphs, key: Key, shape: Shape, inputs: list[torch.Tensor]) -> str:
        # What is never negative could hide that a ReLU has moved.
        signed = [tensor - 0.5 if tensor.is_floating_point() else tensor for tensor in inputs]
        variant = self._compiled.pop(key, None) or self._rewritten
        why = graphs.capture(key, shape, signed, variant) if variant is not None else ""
        if why or variant is None:
            without = graphs.capture(key, shape, inputs)
            why = without or (why and _as_it_is(why))
        return self._choose_layout(graphs, key, shape, signed, why) if self._others else why

    def _choose_layout(self, graphs: Graphs, key: Key, shape: Shape, inputs: list[torch.Tensor], why: str) -> str:
        """Captures the shape in channels_last too, and keeps the quicker graph. Says how it runs then, where that is
        not as described; ``why`` says the same of the contiguous graph."""
        other, refused = (key, "channels_last"), []
        for variant in self._others:
            refused.append(graphs.capture(other, shape, inputs, variant))
            if not refused[-1]:
                break
        better, choice = quicker(graphs.seconds(key), graphs.seconds(other), refused[-1].removeprefix(EAGERLY))
        self._choices[shape] = choice
        log.info("model %s: %s is %s", self.spec.name, shape, choice)
        if not better:
            graphs.drop(other)
            return why
        graphs.keep(key, other)
        return _as_it_is(refused[0]) if refused[0] else ""

    def _open_graphs(self) -> Graphs:
        engine = self.spec.engine
        return Graphs(self.device, self._forward, DTYPES[engine.precision], engine.graph_memory)

    @property
    def _searches(self) -> bool:
        return self.spec.engine.search and self.device.type == "cuda" and torch.version.hip is None

    @contextmanager
    def _searching(self) -> Iterator[None]:
        """Lets cuDNN try its algorithms for what runs inside, where the model asks for it. PyTorch remembers the choice
        for each problem and thread, so that later executions find it whatever the switch says then.

        On AMD the switch is the MIOpen store's, and choices are on the disk.
        """
        if not self._searches:
            yield
            return
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _unwarmed(self, key: Key) -> Forward:
        if self._compiles and self._compiles_late and len(self._compiled) < _REMEMBERED:
            return self._compiled.setdefault(key, self._compile(self._forward))  # what nobody compares is not rewritten
        return self._forward

    def _eager_error(self, inputs: Mapping[str, np.ndarray]) -> Exception | None:
        try:
            with torch.inference_mode():
                self._forward(*(tensor.to(self.device) for tensor in self._on_host(inputs)))
        except Exception as error:  # of the model's own code
            return error
        return None

    def _explained(self, error: RuntimeError, inputs: Mapping[str, np.ndarray]) -> Exception:
        """Whose fault the failure of a shape is that has never run: the model's if it cannot be compiled."""
        if self._compiles:
            from torch._dynamo.exc import TorchDynamoException, TorchRuntimeError  # slow to import, and here by now

            if isinstance(error, TorchDynamoException) and not isinstance(error, TorchRuntimeError):
                own = self._eager_error(inputs)  # of which dynamo says only that it saw one
                if own is not None and not isinstance(own, RuntimeError):
                    return own
                return ModelError(f"{self.spec.name}: engine.execution: cannot be compiled: {first_line(error)}")
        return InvalidInput(f"model {self.spec.name!r} cannot run inputs of shape {_text(inputs)}")


def _as_it_is(why: str) -> str:
    return f"is captured as it is, not compiled or rewritten: {why.removeprefix(EAGERLY)}"


def choose_device(wanted: str) -> torch.device:
    """The device for ``auto`` (an accelerator where there is one, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``.

    AMD's build of PyTorch calls its devices ``cuda`` too. Raises ModelError where the device is not there.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ModelError(f"torch.device: {wanted!r} is not auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"torch.device: {wanted!r} asked for, but PyTorch sees {torch.cuda.device_count()} accelerators"
        )
    return device


def to_tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    """A tensor over the array's own memory where that is possible; ``dtype`` tells bf16 words from uint16."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    if dtype == "bf16":
        array = array.view(np.int16)
    if array.flags.writeable:
        tensor = torch.from_numpy(array)
    else:
        try:
            tensor = torch.from_dlpack(array)  # from_numpy would warn of a read-only request body
        except (BufferError, RuntimeError, TypeError):  # NumPy and PyTorch that cannot exchange read-only memory
            tensor = torch.from_numpy(array.copy())
    return tensor.view(torch.bfloat16) if dtype == "bf16" else tensor


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor on the host, over its own memory where it is there already; bf16 as 16-bit words."""
    return as_array(tensor.cpu())


def _text(inputs: Mapping[str, np.ndarray]) -> str:
    return ",".join(f"{name}={'x'.join(map(str, array.shape))}" for name, array in inputs.items())
