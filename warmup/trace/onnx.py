"""The convolutions that ONNX Runtime's ROCm provider hands to MIOpen, from the graph alone.

The graph is taken after ONNX Runtime's own BASIC optimisation (which needs no GPU), since that fuses Pad into Conv;
dims come from ONNX shape inference, so nothing is computed. Bias, activation and the optimisation level never enter a
key. The rules were compared with what the provider (ONNX Runtime 1.22) asked the real MIOpen 3.4.0 for on a stand-in
device, for a dozen models and 600 random convolutions. MIGraphX asks for the same problems, except that it merges some
projections of residual networks.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper, shape_inference

from handlers.shapes import Shape
from warmup.miopen.layouts import DEFAULT
from warmup.miopen.problem import ConvProblem, output_size
from warmup.trace.result import PlanTrace, ShapeTrace, TraceError

_CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose")
_CPU_ONLY = ("QLinearConv", "ConvInteger", "DeformConv")
_DTYPES: dict[int, str] = {TensorProto.FLOAT: "FP32", TensorProto.FLOAT16: "FP16"}
# ONNX Runtime's CPU provider computes fp16 convolutions in fp32, between casts of this name.
_CAST_FROM_FP16 = "InsertedPrecisionFreeCast_"
_LARGE = 1024  # bytes; larger initialisers are left out of the optimised file, smaller ones may decide shapes
_Tensors = dict[str, tuple[int, tuple[int, ...]]]  # element type and dims


def trace_onnx(path: Path, shapes: Iterable[Shape], *, dtype: str | None = None) -> PlanTrace:
    """The convolutions of the model at every shape.

    ``dtype`` overrides the graph's own (``FP16`` where MIGraphX is told to convert). Raises TraceError where the model
    cannot be read, does not take these inputs, or keeps a dim unknown until it runs.
    """
    with tempfile.TemporaryDirectory(prefix="preheat-trace-") as folder:
        graph = optimised(path, path, Path(folder) / "optimised.onnx")
        traces = []
        for shape in shapes:
            tensors = infer(graph, shape, path)
            known = all(name in tensors for node in _convolutions(graph) for name in node.input[:2])
            if not known:  # once more on a graph in which ONNX Runtime has folded all that follows from the dims
                fixed = Path(folder) / "fixed.onnx"  # beside the weights that its tensors refer to
                fixed.write_bytes(_fixed(graph, shape).SerializeToString())
                static = optimised(path, fixed, Path(folder) / "static.onnx")
                traces.append(_trace(static, shape, infer(static, shape, path), dtype, path))
            else:
                traces.append(_trace(graph, shape, tensors, dtype, path))
    return PlanTrace(tuple(traces))


def optimised(path: Path, source: Path, target: Path) -> onnx.ModelProto:
    """The model ``source`` after ONNX Runtime's BASIC optimisation on the CPU, without its large weights.

    They go to a file beside ``target``. Raises TraceError with ONNX Runtime's reason, naming ``path``.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{target.stem}.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(_LARGE))
    try:
        session = onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(target, load_external_data=False)
    except Exception as error:  # ONNX Runtime's and protobuf's exceptions have no base class in common
        raise TraceError(f"{path}: {str(error).strip().splitlines()[0]}") from error
    # Below version 4 an initialiser counts only if it is an input too, which those that a fusion made are not; and an
    # initialiser that was folded away stays behind as an input.
    graph.ir_version = max(graph.ir_version, 4)
    true_inputs = {value.name for value in session.get_inputs()}
    inputs = [value for value in graph.graph.input if value.name in true_inputs]
    del graph.graph.input[:]
    graph.graph.input.extend(inputs)
    for node in _nodes(graph.graph):
        if node.op_type == "FusedConv":
            _unfuse(node)
    return graph


def infer(model: onnx.ModelProto, shape: Shape, path: Path) -> _Tensors:
    """Element type and dims of every tensor of the graph at ``shape``, but for those that depend on values."""
    inputs = {value.name: value for value in model.graph.input}
    names = {tensor.name for tensor in shape}
    if names != inputs.keys():
        raise TraceError(f"{path}: shape {shape} has the inputs {sorted(names)}, the model takes {sorted(inputs)}")
    for tensor in shape:
        rank = len(inputs[tensor.name].type.tensor_type.shape.dim)
        if rank not in (0, len(tensor.dims)):
            raise TraceError(f"{path}: input {tensor.name!r} has {len(tensor.dims)} dims, the model takes {rank}")
    try:
        inferred = shape_inference.infer_shapes(_fixed(model, shape), data_prop=True)
    except (shape_inference.InferenceError, ValueError) as error:
        raise TraceError(f"{path}: shape {shape}: {str(error).strip().splitlines()[0]}") from error
    return _known(inferred.graph)


def _trace(model: onnx.ModelProto, shape: Shape, tensors: _Tensors, dtype: str | None, path: Path) -> ShapeTrace:
    calls: Counter[ConvProblem] = Counter()
    elsewhere: Counter[str] = Counter()
    for node in _nodes(model.graph):
        if node.op_type in _CPU_ONLY:
            elsewhere[f"{node.op_type}: the ROCm provider leaves it to the CPU"] += 1
    for node in _convolutions(model):
        missing = [name for name in node.input[:2] if name not in tensors]
        if missing:
            raise TraceError(
                f"{path}: shape {shape}: node {node.name or node.output[0]!r}: the dims of {missing[0]!r} are not "
                "known before the model runs"
            )
        (_, x), (element, w) = (tensors[name] for name in node.input[:2])
        from_fp16 = any(name.startswith(_CAST_FROM_FP16) for name in node.input[:2])
        found = "FP16" if from_fp16 else _DTYPES.get(element)
        if found is None:
            elsewhere[f"{node.op_type}: the ROCm provider takes fp32 and fp16 only"] += 1
        elif len(x) not in (3, 4, 5):
            elsewhere[f"{node.op_type}: MIOpen takes 1 to 3 spatial dims"] += 1
        else:
            calls[problem(node, x, w, dtype or found)] += 1
    return ShapeTrace(shape, calls, elsewhere)


def problem(node: onnx.NodeProto, x: Sequence[int], w: Sequence[int], dtype: str) -> ConvProblem:
    """What the provider asks of MIOpen for one node with inputs of dims ``x`` and ``w``."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    rank = len(x) - 2
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    transposed = node.op_type == "ConvTranspose"
    extra: tuple[int, ...] = ()
    if transposed:
        pads, extra = _transposed_pads(attributes, auto, x[2:], w[2:], strides, dilations)
    else:
        pads = _plain_pads(attributes, auto, x[2:], w[2:], strides, dilations)
    if rank == 1:  # a convolution becomes Wx1, its transposed twin 1xW
        at = 0 if transposed else 1
        x, w = _insert(x, 2 + at, 1), _insert(w, 2 + at, 1)
        strides, dilations, pads = _insert(strides, at, 1), _insert(dilations, at, 1), _insert(pads, at, 0)
        extra = _insert(extra, at, 0) if extra else ()
    return ConvProblem.from_dims(
        tuple(x),
        tuple(w),
        pad=pads,
        stride=strides,
        dilation=dilations,
        groups=attributes.get("group", 1),
        transposed=transposed,
        output_pad=extra,
        dtypes=dtype,
        layouts=DEFAULT[len(x) - 2],
    )


def _plain_pads(
    attributes: dict[str, Any],
    auto: str,
    x: Sequence[int],
    w: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """One pad per dim. MIOpen pads both sides alike, so the provider computes more than it needs and cuts it off."""
    rank = len(x)
    both = tuple(attributes.get("pads") or (0,) * 2 * rank)
    if auto == "VALID":
        both = (0,) * 2 * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        needed = [
            max(0, (-(-size // step) - 1) * step + (reach - 1) * dilation + 1 - size)
            for size, reach, step, dilation in zip(x, w, strides, dilations, strict=True)
        ]
        smaller, larger = [pad // 2 for pad in needed], [pad - pad // 2 for pad in needed]
        both = tuple(smaller + larger if auto == "SAME_UPPER" else larger + smaller)
    return tuple(_symmetric(both[at], both[at + rank], strides[at]) for at in range(rank))


def _symmetric(begin: int, end: int, stride: int) -> int:
    """The pad that stands for two unequal ones: begin grows by whole strides, so that outputs only shift."""
    return begin if begin >= end else begin + -(-(end - begin) // stride) * stride


def _transposed_pads(
    attributes: dict[str, Any],
    auto: str,
    x: Sequence[int],
    w: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The begin pads, and what the output has beyond the formula with these pads on both sides."""
    rank = len(x)
    extra = tuple(attributes.get("output_padding") or (0,) * rank)
    both = list(attributes.get("pads") or (0,) * 2 * rank)
    wanted = attributes.get("output_shape")
    numbers = list(zip(x, w, strides, dilations, extra, strict=True))
    full = [
        output_size(size, reach, 0, step, dilation, more, transposed=True)
        for size, reach, step, dilation, more in numbers
    ]
    if auto == "VALID":
        both = [0] * 2 * rank
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        # A filter smaller than its stride leaves gaps, and the provider's output ends with the last filter.
        same = [min(size * step, whole) for (size, _, step, _, _), whole in zip(numbers, full, strict=True)]
        output = list(wanted)[-rank:] if wanted else same
        needed = [max(0, whole - out) for whole, out in zip(full, output, strict=True)]
        smaller, larger = [pad // 2 for pad in needed], [pad - pad // 2 for pad in needed]
        both = smaller + larger if auto == "SAME_UPPER" else larger + smaller
    else:
        output = [whole - both[at] - both[at + rank] for at, whole in enumerate(full)]
    begin = tuple(both[:rank])
    formula = [
        output_size(size, reach, pad, step, dilation, transposed=True)
        for (size, reach, step, dilation, _), pad in zip(numbers, begin, strict=True)
    ]
    return begin, tuple(out - expected for out, expected in zip(output, formula, strict=True))


def _insert(values: Sequence[int], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at:])


def _convolutions(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in _nodes(model.graph) if node.op_type in _CONVOLUTIONS]


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of branches and loop bodies too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _known(graph: onnx.GraphProto) -> _Tensors:
    """Initialisers, inputs, outputs and intermediate tensors of which every dim is a number."""
    tensors = {tensor.name: (int(tensor.data_type), tuple(tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(size.HasField("dim_value") for size in tensor.shape.dim):
            tensors[value.name] = tensor.elem_type, tuple(size.dim_value for size in tensor.shape.dim)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                tensors |= _known(attribute.g)
    return tensors


def _fixed(model: onnx.ModelProto, shape: Shape) -> onnx.ModelProto:
    """The model with fixed dims of inputs, and without what the file says of other tensors, which no longer holds."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    dims = {tensor.name: tensor.dims for tensor in shape}
    for value in fixed.graph.input:
        sizes = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in dims[value.name]]
        value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=sizes))
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    del fixed.graph.value_info[:]
    return fixed


def _unfuse(node: onnx.NodeProto) -> None:
    """Makes a plain Conv of ONNX Runtime's FusedConv, which ONNX's shape inference does not know."""
    node.op_type, node.domain = "Conv", ""
    kept = [a for a in node.attribute if not a.name.startswith("activation")]
    del node.attribute[:]
    node.attribute.extend(kept)
    del node.input[3:]
