"""Convolutions of which MIOpen, left to itself, would never keep a record, so that every process searches them again.

It keeps none where a solver was skipped for want of workspace, and ONNX Runtime's ROCm provider often gives too little:
what MIOpen names, which leaves GEMM out where dilation is above 1; or a fixed 32 MB, for transposed convolutions and
with ``miopen_conv_use_max_workspace: 0`` (onnxruntime/core/providers/rocm/nn/conv.cc and conv_transpose.cc, and as
watched, docs/onnxruntime.md). A sweep tells MIOpen to keep such records all the same (``warmup.stores.miopen``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

from handlers.errors import ModelError
from handlers.loading import Model
from handlers.spec import ModelSpec
from warmup.miopen.problem import ConvProblem
from warmup.plan import expand
from warmup.stores.miopen import MIOpenStore
from warmup.stores.onnxruntime import provider_library
from warmup.trace.model import trace
from warmup.trace.result import TraceError

FIXED = 32 << 20  # bytes of workspace that the provider offers where it does not ask MIOpen
_BYTES = {"FP32": 4, "FP16": 2, "BF16": 2}
_MAX_WORKSPACE = "miopen_conv_use_max_workspace"


def unrecorded(models: Iterable[Model], stores: Path) -> Iterator[str]:
    """For every such convolution of models that run on the ROCm provider: its key, why, and what was done about it."""
    for model in models:
        if not _on_rocm(model.spec):
            continue
        name = model.spec.name
        try:
            traced = trace(model.spec, model.folder, [planned.shape for planned in expand(model.spec, model.folder)])
        except (TraceError, ModelError) as error:
            yield f"{name}: which records MIOpen would not keep is not known: {error}"
            continue
        most = model.spec.engine.options.get("rocm", {}).get(_MAX_WORKSPACE, "1") not in ("0", "false", "False")
        kept = MIOpenStore().problem_keys(stores / MIOpenStore.name)
        for problem, key in traced.keys.items():
            why = reason(problem, most)
            if why:
                done = (
                    "its record was kept, since the sweep told MIOpen to"
                    if key in kept
                    else "there is none: serving takes what MIOpen guesses, and searches nothing"
                )
                yield f"{name}: {key}: MIOpen by itself keeps no record of it: {why}; {done}"


def reason(problem: ConvProblem, max_workspace: bool = True) -> str:
    """Why the provider's workspace is too small for one of the solvers; empty where it is not."""
    needed = unfolded_bytes(problem)
    if not needed:
        return ""
    if problem.transposed or not max_workspace:
        if needed <= FIXED:
            return ""
        return f"GEMM needs {needed} bytes of workspace, the provider gives {FIXED}"
    if any(dilation > 1 for dilation in problem.dilation):
        return "MIOpen names no workspace for GEMM where dilation is above 1"
    return ""


def unfolded_bytes(problem: ConvProblem) -> int:
    """What GEMM writes its unfolded input to: every element under every position of the filter, for one image."""
    if prod(problem.filter) == 1 and set(problem.stride) == {1}:
        return 0
    wide, narrow = problem.in_channels, problem.out_spatial
    if problem.transposed:
        wide, narrow = problem.out_channels, problem.in_spatial
    return wide * prod(problem.filter) * prod(narrow) * max(_BYTES.get(dtype, 4) for dtype in problem.dtypes)


def _on_rocm(spec: ModelSpec) -> bool:
    """Whether the first of the model's providers that the installed ONNX Runtime has is the ROCm one."""
    if spec.engine.kind != "onnx":
        return False
    there = [name for name in spec.engine.providers if name == "cpu" or provider_library(name) is not None]
    return there[:1] == ["rocm"]
