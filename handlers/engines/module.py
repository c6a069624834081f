"""A PyTorch model as a module, from what its description says, and as a function of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from handlers.engines.compiling import Forward
from handlers.engines.folding import folded
from handlers.engines.fusing import fused
from handlers.engines.pointwise import multiplied
from handlers.errors import ModelError
from handlers.sources import RANDOM, class_source, load_class, resolve
from handlers.spec import ModelSpec

DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


def build_module(spec: ModelSpec, folder: Path, rewrite: bool = False, channels_last: bool | None = None) -> nn.Module:
    """The model on the CPU, in evaluation mode, in its precision and memory format; nothing is run. ``channels_last``
    says which format that is where the description leaves it open (contiguous if not given).

    With ``rewrite`` it computes the same in fewer kernels, as far as the description asks for that; normalisations are
    folded while it is still in fp32.

    Raises ModelError on a source or weights that cannot be read, or that do not fit each other.
    """
    engine = spec.engine
    if class_source(engine.source):
        module = _from_class(spec, folder)
    elif engine.source.endswith(".pt2"):
        path = resolve(engine.source, folder)
        try:
            module = torch.export.load(path).module()
        except Exception as error:  # a damaged archive fails in many ways, all of which mean the same to the caller
            raise ModelError(f"{path}: not a torch.export program: {first_line(error)}") from error
    elif engine.source.endswith(".ts"):
        path = resolve(engine.source, folder)
        try:
            module = torch.jit.load(path, map_location="cpu").eval()
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{path}: not TorchScript: {first_line(error)}") from error
    else:
        raise ModelError(f"{spec.name}: engine.source: {engine.source!r} is not .pt2, .ts or MODULE.py:CLASS")
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    if rewrite and engine.fold_batchnorm:
        module = folded(module, spec.name)
    if rewrite and engine.fuse_activations:
        module = fused(module, spec.name)
    if rewrite and engine.pointwise_as_matmul:
        module = multiplied(module, spec.name)
    module = module.to(DTYPES[engine.precision])
    channels_last = engine.layouts[0] if channels_last is None else channels_last
    return module.to(memory_format=torch.channels_last) if channels_last else module  # type: ignore[call-overload]


def forward(module: nn.Module, spec: ModelSpec, channels_last: bool | None = None) -> Forward:
    """A function from the declared inputs, in order, to the declared outputs, in order.

    Floating inputs are cast to the engine's precision and outputs to their declared dtypes, inside the function, so
    that a compiler can fuse the casts. ``channels_last`` as for ``build_module``.
    """
    precision = DTYPES[spec.engine.precision]
    channels_last = spec.engine.layouts[0] if channels_last is None else channels_last
    names = tuple(tensor.name for tensor in spec.outputs)
    dtypes = tuple(DTYPES[tensor.dtype] for tensor in spec.outputs)

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        prepared = []
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor = tensor.to(precision)
            if channels_last and tensor.dim() == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            prepared.append(tensor)
        result = module(*prepared)
        if isinstance(result, torch.Tensor):
            result = (result,)
        elif isinstance(result, Mapping):
            result = tuple(result[name] for name in names)
        if len(result) != len(dtypes):
            raise ModelError(f"the model gives {len(result)} outputs, model.yaml declares {len(dtypes)}")
        return tuple(tensor.to(dtype).contiguous() for tensor, dtype in zip(result, dtypes))  # noqa: B905  dynamo

    return forward


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).strip().split("\n", 1)[0]


def _from_class(spec: ModelSpec, folder: Path) -> nn.Module:
    engine = spec.engine
    found = load_class(folder, engine.source)
    if not issubclass(found, nn.Module):
        raise ModelError(f"{spec.name}: engine.source: {engine.source} is not a torch.nn.Module")
    weights = engine.weights
    if weights is None:
        raise ModelError(
            f"{spec.name}: engine.weights: needed with {engine.source}: a .safetensors file or random:SEED"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(spec, weights) if weights.startswith(RANDOM) else 0)
        try:
            module = found(**engine.arguments)
        except TypeError as error:
            raise ModelError(f"{spec.name}: engine.arguments: {error}") from error
    if not weights.startswith(RANDOM):
        _load_weights(module, resolve(weights, folder))
    return module.eval()


def _seed(spec: ModelSpec, weights: str) -> int:
    seed = weights.removeprefix(RANDOM)
    if not seed.isdecimal():
        raise ModelError(f"{spec.name}: engine.weights: {weights!r} is not random:SEED with a whole number")
    return int(seed)


def _load_weights(module: nn.Module, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        module.load_state_dict(load_file(path), strict=True)
    except SafetensorError as error:
        raise ModelError(f"{path}: not safetensors: {error}") from error
    except RuntimeError as error:
        raise ModelError(f"{path}: weights do not fit {type(module).__name__}: {error}") from error
