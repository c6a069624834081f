"""ReLU, and the addition before it, computed by the convolution that they follow: cuDNN's fused kernels, in which
neither is written to memory and read again.

PyTorch's functions for them are ``torch.cudnn_convolution_relu`` and ``torch.cudnn_convolution_add_relu``. The second
has its convolution computed later than the model does, so nothing may be changed in place in between. A rewritten model
is only captured where its outputs are those of the model as it is (``handlers.engines.graph``).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from handlers.errors import ModelError

_RELU_FUNCTIONS = (torch.relu, functional.relu)
_RELU_METHODS = ("relu", "relu_")
_ADDITIONS = (operator.add, torch.add)  # ``x += y`` is traced as the first


class ConvolutionRelu(nn.Module):
    """A convolution and the ReLU behind it."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of = self.convolution
        if x.dim() != 4 or x.dtype != of.weight.dtype:  # which the functional form refuses
            return torch.relu(of(x))
        return torch.cudnn_convolution_relu(x, of.weight, of.bias, of.stride, of.padding, of.dilation, of.groups)  # type: ignore[arg-type]


class ConvolutionAddRelu(nn.Module):
    """A convolution, the addition of a tensor of the same dims, and the ReLU behind it."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        of = self.convolution
        alike = isinstance(added, torch.Tensor) and x.dtype == added.dtype == of.weight.dtype
        if not alike or x.dim() != 4 or tuple(added.shape) != _result_dims(of, x.shape):  # cuDNN would not broadcast
            return torch.relu(of(x) + added)
        arguments: Any = (of.bias, of.stride, of.padding, of.dilation, of.groups)
        return torch.cudnn_convolution_add_relu(x, of.weight, added, 1.0, *arguments)


FUSED = (ConvolutionRelu, ConvolutionAddRelu)


def fused(module: nn.Module, model: str) -> nn.Module:
    """A module in evaluation mode whose convolutions compute the ReLU behind them; the given one stays as it is, unless
    it is a traced one.

    Raises ModelError where the module's code cannot be traced, or where there is nothing to fuse.
    """
    try:
        traced = module if isinstance(module, fx.GraphModule) else fx.symbolic_trace(module)
        changes = [_fuse(traced, node) for node in list(traced.graph.nodes) if _is_relu(traced, node)]
        traced.graph.lint()
        traced.recompile()
    except Exception as error:  # tracing runs the model's own code, which may fail in any way
        why = str(error).strip().split("\n", 1)[0]
        raise ModelError(f"{model}: engine.fuse_activations: the model cannot be traced: {why}") from error
    if not any(changes):
        raise ModelError(f"{model}: engine.fuse_activations: no ReLU stands behind a convolution")
    return traced


def _fuse(traced: fx.GraphModule, relu: fx.Node) -> bool:
    """Has the convolution before ``relu`` compute it too; whether there is one."""
    before = relu.args[0] if len(relu.args) == 1 else None
    if not isinstance(before, fx.Node) or relu.kwargs.keys() - {"inplace"}:
        return False
    if _is_convolution(traced, before):
        _replace(traced, before, ConvolutionRelu)
        relu.replace_all_uses_with(before)
        traced.graph.erase_node(relu)
        return True
    parts = _summands(traced, before)
    if parts is None:
        return False
    convolution, added = parts
    _replace(traced, convolution, ConvolutionAddRelu)
    with traced.graph.inserting_after(before):
        together = traced.graph.call_module(str(convolution.target), (convolution.args[0], added))
    relu.replace_all_uses_with(together)
    for node in (relu, before, convolution):
        traced.graph.erase_node(node)
    return True


def _summands(traced: fx.GraphModule, node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The convolution and the other tensor that a node adds, where nothing else uses their sum."""
    if node.op != "call_function" or node.target not in _ADDITIONS or len(node.users) != 1:
        return None
    if len(node.args) != 2 or node.kwargs or not all(isinstance(part, fx.Node) for part in node.args):
        return None
    left, right = (part for part in node.args if isinstance(part, fx.Node))
    if left is right:
        return None
    fusible = [
        pair
        for pair in ((left, right), (right, left))
        if _is_convolution(traced, pair[0]) and not _changed_between(traced, pair[0], node)
    ]
    return fusible[-1] if fusible else None  # the later of two, as a rule: where a convolution is the shortcut


def _changed_between(traced: fx.GraphModule, first: fx.Node, last: fx.Node) -> bool:
    """Whether anything might be changed in place after one node and before another."""
    node = first.next
    while node is not last:
        if _in_place(traced, node):
            return True
        node = node.next
    return False


def _in_place(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.kwargs.get("inplace") or "out" in node.kwargs:
        return True
    if node.op == "call_module":
        return any(getattr(part, "inplace", False) for part in traced.get_submodule(str(node.target)).modules())
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    special = name.endswith("__")
    changes = name.startswith("__i") or name == "__setitem__" if special else name.endswith("_") or name == "setitem"
    return node.op in ("call_method", "call_function") and changes


def _is_convolution(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node calls a convolution that cuDNN takes, nothing else calls it or reads its weights, and only one
    node uses what it returns."""
    if node.op != "call_module" or len(node.users) != 1 or node.kwargs:
        return False
    module, name = traced.get_submodule(str(node.target)), str(node.target)
    plain = isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    plain = plain and not _hooked(module)
    others = [str(other.target) for other in traced.graph.nodes if other is not node]
    return plain and not any(other == name or other.startswith(f"{name}.") for other in others)


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        return isinstance(module, nn.ReLU) and not _hooked(module)
    functions = node.op == "call_function" and node.target in _RELU_FUNCTIONS
    return functions or (node.op == "call_method" and node.target in _RELU_METHODS)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _replace(traced: fx.GraphModule, node: fx.Node, kind: type[ConvolutionRelu] | type[ConvolutionAddRelu]) -> None:
    name = str(node.target)
    convolution = traced.get_submodule(name)
    assert isinstance(convolution, nn.Conv2d)
    traced.set_submodule(name, kind(convolution))


def _result_dims(of: nn.Conv2d, dims: Sequence[int]) -> tuple[int, ...]:
    """What the convolution makes of ``batch x channels x height x width``."""
    sides = zip(dims[2:], of.kernel_size, of.stride, of.padding, of.dilation, strict=True)
    return (
        dims[0],
        of.out_channels,
        *(
            (side + 2 * int(pad) - spread * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, pad, spread in sides
        ),
    )
