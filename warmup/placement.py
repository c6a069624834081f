"""How much of an ONNX graph a provider runs: nodes, and operations; what is fused, and what only changes a layout.

From a session where the provider can be had here: one execution is profiled, and ONNX Runtime says of every node which
provider ran it. Without one, from the rules that the ROCm and CUDA providers were seen to follow
(docs/onnxruntime.md); MIGraphX decides by itself, so of it nothing is said without a session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from handlers.engines.engine import example
from handlers.shapes import Shape
from warmup.operations import operations
from warmup.sessions import CannotOpen, Wanted, open_for, profiled, run, scratch
from warmup.trace.onnx import infer, optimised
from warmup.trace.result import TraceError

Tensors = Mapping[str, tuple[int, tuple[int, ...]]]  # element type and dims

_CPU = "CPUExecutionProvider"
_COPIES = ("MemcpyToHost", "MemcpyFromHost")
_REORDERS = ("ReorderInput", "ReorderOutput")  # to the CPU's blocked layout and back
_KERNEL = "_kernel_time"
# Of the rules. Convolutions for which no GPU kernel is registered:
_NO_KERNEL = frozenset({"QLinearConv", "ConvInteger", "DeformConv"})
# Their kernels write to host memory, and nodes that follow on them are cheaper on the CPU
# (onnxruntime/core/framework/fallback_cpu_capability.cc, GetCpuPreferredNodes).
_WRITES_HOST = frozenset({"Shape", "Size"})
_PREFERRED = "computes shapes, which is faster on the CPU"
# Inputs that GPU kernels read from host memory anyway, by position: they keep no node from the GPU.
_READS_HOST: Mapping[str, frozenset[int]] = {
    "Reshape": frozenset({1}),
    "Expand": frozenset({1}),
    "Tile": frozenset({1}),
    "Squeeze": frozenset({1}),
    "Unsqueeze": frozenset({1}),
    "Split": frozenset({1}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Pad": frozenset({1, 2, 3}),
    "Resize": frozenset({1, 2, 3}),
    "Upsample": frozenset({1}),
    "TopK": frozenset({1}),
    "OneHot": frozenset({1}),
    "ConstantOfShape": frozenset({0}),
    "Range": frozenset({0, 1, 2}),
    "If": frozenset({0}),
    "Loop": frozenset({0, 1}),
}
_SMALL = 100  # elements of an initialiser that a preferred node may take along
_NEVER_PREFERRED = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


@dataclass(frozen=True)
class Left:
    """A node that the provider does not run, and why."""

    name: str
    op: str
    operations: int
    reason: str


@dataclass(frozen=True)
class ProviderPlacement:
    """What a provider runs of a graph at one shape. ``source`` is ``session`` or ``rules``.

    ``nodes`` and ``operations`` are of the graph after ONNX Runtime's BASIC optimisation, which no provider changes.
    ``fused`` counts the nodes that were made of several by what they do, ``transposes`` those that only change a layout
    and are not the model's own; both are empty where there was no session.
    """

    provider: str
    shape: Shape
    source: str
    nodes: int
    operations: int
    left: tuple[Left, ...]
    fused: Mapping[str, int] = field(default_factory=dict)
    transposes: int | None = None

    @property
    def node_share(self) -> float:
        return 1 - len(self.left) / self.nodes if self.nodes else 0.0

    @property
    def operation_share(self) -> float:
        return 1 - sum(node.operations for node in self.left) / self.operations if self.operations else 0.0

    def to_json(self) -> dict[str, object]:
        return {
            "provider": self.provider,
            "shape": self.shape.text,
            "source": self.source,
            "nodes": self.nodes,
            "nodes_taken": self.nodes - len(self.left),
            "node_share": self.node_share,
            "operations": self.operations,
            "operation_share": self.operation_share,
            "left": [vars(node) for node in self.left],
            "fused": dict(self.fused),
            "transposes": self.transposes,
        }


def place(path: Path, shape: Shape, wanted: Wanted) -> ProviderPlacement | str:
    """What the provider of ``wanted`` runs of the graph at ``shape``; where that cannot be said, why.

    Raises TraceError where the graph cannot be read or followed.
    """
    with scratch() as folder:
        graph = optimised(path, path, Path(folder) / "basic.onnx")
    tensors = infer(graph, shape, path)
    work = {_key(node): _work(node, tensors) for node in graph.graph.node}
    total = sum(work.values())
    try:
        events = _observed(path, shape, wanted)
    except CannotOpen as error:
        if wanted.provider not in ("rocm", "cuda"):
            return f"{error}; without a session nothing can be said"
        left = tuple(by_rules(graph, tensors, work))
        return ProviderPlacement(wanted.provider, shape, "rules", len(work), total, left)
    file = Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)
    left = tuple(_left(events)) if wanted.provider != "cpu" else ()
    return ProviderPlacement(
        wanted.provider, shape, "session", len(work), total, left, _fused(events, file), _transposes(events, file)
    )


def by_rules(graph: onnx.ModelProto, tensors: Tensors, work: Mapping[str, int]) -> Iterable[Left]:
    """The nodes that the ROCm provider leaves to the CPU, from the graph alone: those without a kernel, and those that
    only compute shapes."""
    preferred = _preferred(graph.graph, tensors)
    for node in graph.graph.node:
        reason = ""
        if node.op_type in _NO_KERNEL:
            reason = "no kernel"
        elif node.op_type == "Conv" and tensors.get(node.input[0], (0,))[0] == TensorProto.DOUBLE:
            reason = "no kernel for fp64"
        elif _key(node) in preferred:
            reason = _PREFERRED
        if reason:
            yield Left(node.name or node.output[0], node.op_type, work[_key(node)], reason)


def _preferred(graph: onnx.GraphProto, tensors: Tensors) -> set[str]:
    """The nodes that follow on a Shape and take nothing but host tensors, graph inputs and small constants."""
    on_host: set[str] = set()
    small = {tensor.name for tensor in graph.initializer if int(np.prod(tensor.dims, dtype=np.int64)) <= _SMALL}
    free = small | {value.name for value in graph.input}
    found = set()
    for node in graph.node:  # in order: what a node reads was written before
        if node.op_type in _WRITES_HOST:
            on_host.update(node.output)
            continue
        read = [(index, name) for index, name in enumerate(node.input) if name]
        if not any(name in on_host for _, name in read):
            continue
        host_inputs = _READS_HOST.get(node.op_type, frozenset())
        wanted = all(
            tensors.get(name, (0,))[0] not in _NEVER_PREFERRED
            and (name in free or (name in on_host and index not in host_inputs))
            for index, name in read
        )
        if wanted:
            found.add(_key(node))
            on_host.update(node.output)
    return found


def _observed(path: Path, shape: Shape, wanted: Wanted) -> Sequence[Mapping[str, Any]]:
    """The node events of one execution. Raises CannotOpen."""
    with scratch() as folder:
        session = open_for(path, shape, wanted, Path(folder) / "profile")
        run(session, [output.name for output in session.get_outputs()], example(shape))
        events = profiled(session)
    return [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_KERNEL)]


def _left(events: Iterable[Mapping[str, Any]]) -> Iterable[Left]:
    for event in events:
        facts = event["args"]
        if facts["provider"] == _CPU and facts["op_name"] not in _COPIES:
            name, op = event["name"].removesuffix(_KERNEL), facts["op_name"]
            work = operations(op, _dims(facts["input_type_shape"]), _dims(facts["output_type_shape"]))
            yield Left(name, op, work, "the provider left it")


def _fused(events: Iterable[Mapping[str, Any]], file: Mapping[str, int]) -> dict[str, int]:
    """Kinds of nodes that the file does not have: only a fusion makes them."""
    made = Counter(event["args"]["op_name"] for event in events)
    return {op: count for op, count in made.items() if op not in file and op not in (*_COPIES, *_REORDERS, "Transpose")}


def _transposes(events: Iterable[Mapping[str, Any]], file: Mapping[str, int]) -> int:
    made = Counter(event["args"]["op_name"] for event in events)
    return max(0, made["Transpose"] - file.get("Transpose", 0)) + sum(made[op] for op in _REORDERS)


def _dims(types: Sequence[Mapping[str, Sequence[int]]]) -> list[Sequence[int]]:
    """The dims in ONNX Runtime's profile, ``[{"float": [1, 3, 8, 8]}, ...]``."""
    return [dims for tensor in types for dims in tensor.values()]


def _work(node: onnx.NodeProto, tensors: Tensors) -> int:
    inputs = [tensors[name][1] if name in tensors else () for name in node.input]
    outputs = [tensors[name][1] for name in node.output if name in tensors]
    return operations(node.op_type, inputs, outputs)


def _key(node: onnx.NodeProto) -> str:
    return next(name for name in node.output if name)


__all__ = ["Left", "ProviderPlacement", "TraceError", "by_rules", "place"]
