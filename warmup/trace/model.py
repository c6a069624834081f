"""What a model of the store asks of MIOpen over its plan: one entry for all kinds of engines."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from handlers.errors import ModelError
from handlers.shapes import Shape
from handlers.sources import resolve
from handlers.spec import ModelSpec
from warmup.trace.result import PlanTrace, TraceError, merged

NHWC_VARIABLE = "PYTORCH_MIOPEN_SUGGEST_NHWC"


def trace(spec: ModelSpec, folder: Path, shapes: Iterable[Shape], *, nhwc: bool | None = None) -> PlanTrace:
    """The convolutions of the model at each shape; frameworks are imported here, and only the one in use.

    ``nhwc`` is what PyTorch will find in ``PYTORCH_MIOPEN_SUGGEST_NHWC``; None takes it from this process. Raises
    TraceError where the model cannot be followed, ModelError where it cannot be read.
    """
    try:
        if spec.engine.kind == "torch":
            from handlers.engines.module import build_module, forward
            from warmup.trace.torch import trace_torch

            nhwc = nhwc_suggested() if nhwc is None else nhwc
            asked = tuple(shapes)

            def in_layout(channels_last: bool) -> PlanTrace:
                module = build_module(spec, folder, channels_last=channels_last)
                return trace_torch(forward(module, spec, channels_last), module, asked, nhwc=nhwc)

            return merged([in_layout(channels_last) for channels_last in spec.engine.layouts])
        if spec.engine.kind == "onnx":
            from warmup.trace.onnx import trace_onnx

            path = resolve(spec.engine.source, folder)
            return trace_onnx(path, shapes, dtype="FP16" if spec.engine.precision == "fp16" else None)
    except (TraceError, ModelError) as error:
        raise type(error)(f"{spec.name}: {str(error).removeprefix(f'{spec.name}: ')}") from error
    raise TraceError(f"{spec.name}: engine.kind {spec.engine.kind} cannot be traced; torch and onnx can")


def nhwc_suggested() -> bool:
    """Whether PyTorch in this process would hand channels_last tensors to MIOpen as NHWC; it takes 1 for yes."""
    return os.environ.get(NHWC_VARIABLE) == "1"
