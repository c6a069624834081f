"""ReLU, and the addition before it, computed by the convolution that they follow: cuDNN's fused kernels, in which
neither is written to memory and read again.

PyTorch's functions for them are ``torch.cudnn_convolution_relu`` and ``torch.cudnn_convolution_add_relu``. A rewritten
model is only captured where its outputs are those of the model as it is (``handlers.engines.graph``), so what a rewrite
by patterns cannot see, such as a tensor that is changed in place in between, costs a shape its fusion and no answer its
truth.
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
_ADDITIONS = (operator.add, operator.iadd, torch.add)


class ConvolutionRelu(nn.Module):
    """A convolution and the ReLU behind it."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of = self.convolution
        return torch.cudnn_convolution_relu(x, of.weight, of.bias, of.stride, of.padding, of.dilation, of.groups)  # type: ignore[arg-type]


class ConvolutionAddRelu(nn.Module):
    """A convolution, the addition of a tensor of the same dims, and the ReLU behind it."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        of = self.convolution
        if tuple(added.shape) != _result_dims(of, x.shape):  # which cuDNN would not broadcast
            return torch.relu(of(x) + added)
        arguments: Any = (of.bias, of.stride, of.padding, of.dilation, of.groups)
        return torch.cudnn_convolution_add_relu(x, of.weight, added, 1.0, *arguments)


def fused(module: nn.Module, model: str) -> nn.Module:
    """A module in evaluation mode whose convolutions compute the ReLU behind them; the given one stays as it is.

    Raises ModelError where the module's code cannot be traced, or where there is nothing to fuse.
    """
    try:
        traced = module if isinstance(module, fx.GraphModule) else fx.symbolic_trace(module)
    except Exception as error:  # tracing runs the model's own code, which may fail in any way
        why = str(error).strip().split("\n", 1)[0]
        raise ModelError(f"{model}: engine.fuse_activations: the model cannot be traced: {why}") from error
    changes = [_fuse(traced, node) for node in list(traced.graph.nodes) if _is_relu(traced, node)]
    if not any(changes):
        raise ModelError(f"{model}: engine.fuse_activations: no ReLU stands behind a convolution")
    traced.graph.lint()
    traced.recompile()
    return traced


def _fuse(traced: fx.GraphModule, relu: fx.Node) -> bool:
    """Has the convolution before ``relu`` compute it too; whether there is one."""
    before = relu.args[0]
    if not isinstance(before, fx.Node):
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
    if node.op != "call_function" or node.target not in _ADDITIONS or len(node.users) != 1 or node.kwargs:
        return None
    left, right = node.args
    if not (isinstance(left, fx.Node) and isinstance(right, fx.Node)) or left is right:
        return None
    if node.target is operator.iadd and len(left.users) != 1:  # somebody else sees the sum in its place
        return None
    if _is_convolution(traced, right):  # the later one, as a rule: both of a block with a convolution as its shortcut
        return right, left
    return (left, right) if _is_convolution(traced, left) else None


def _is_convolution(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node calls a convolution of its own that cuDNN takes, and only one node uses what it returns."""
    if node.op != "call_module" or len(node.users) != 1 or node.kwargs:
        return False
    module = traced.get_submodule(str(node.target))
    calls = sum(other.op == "call_module" and other.target == node.target for other in traced.graph.nodes)
    plain = isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return plain and calls == 1


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(traced.get_submodule(str(node.target)), nn.ReLU)
    functions = node.op == "call_function" and node.target in _RELU_FUNCTIONS
    return functions or (node.op == "call_method" and node.target in _RELU_METHODS)


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
