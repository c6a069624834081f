"""Batch normalisation folded into the convolution or linear layer before it: the same function in fewer kernels.

Tracing takes ``x += y`` for ``x = x + y``: a model that relies on the difference is found where outputs are compared.
"""

from __future__ import annotations

import copy

from torch import fx, nn
from torch.fx.experimental.optimization import fuse

from handlers.errors import ModelError

_FOLDED = (nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._BatchNorm)


def folded(module: nn.Module, model: str) -> nn.Module:
    """A module in evaluation mode without the normalisations that can be folded; the given one stays as it is.

    Raises ModelError where the module's code cannot be traced, or where no normalisation can be folded.
    """
    try:
        traced = _apart(fx.symbolic_trace(module))
        result = fuse(traced, no_trace=True)
    except Exception as error:  # tracing runs the model's own code, which may fail in any way
        why = str(error).strip().split("\n", 1)[0]
        raise ModelError(f"{model}: engine.fold_batchnorm: the model cannot be traced: {why}") from error
    if _normalised(result) == _normalised(traced):
        raise ModelError(
            f"{model}: engine.fold_batchnorm: no normalisation stands behind a convolution or linear layer"
        )
    return result


def _apart(traced: fx.GraphModule) -> fx.GraphModule:
    """Gives each call of a layer a layer of its own, where it is called more than once or something else reads its
    weights: what is folded into one call must not reach the others. Raises ValueError for layers with hooks."""
    named = [str(node.target) for node in traced.graph.nodes if node.op in ("call_module", "get_attr")]
    for number, node in enumerate(list(traced.graph.nodes)):
        if node.op != "call_module":
            continue
        name = str(node.target)
        layer = traced.get_submodule(name)
        if not isinstance(layer, _FOLDED):
            continue
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise ValueError(f"{name} has hooks, which folding would lose")
        if named.count(name) > 1 or any(other.startswith(f"{name}.") for other in named):
            node.target = f"{name.replace('.', '_')}_call_{number}"
            traced.add_submodule(node.target, copy.deepcopy(layer))
    traced.recompile()
    return traced


def _normalised(traced: nn.Module) -> int:
    """How often it normalises."""
    assert isinstance(traced, fx.GraphModule)
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    return sum(isinstance(traced.get_submodule(node.target), nn.modules.batchnorm._BatchNorm) for node in calls)
