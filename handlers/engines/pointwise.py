"""Convolutions with a kernel of one pixel, computed as what they are: one matrix product over all pixels.

In ``channels_last`` a tensor's memory is that matrix already, and the libraries for matrix products add the bias in the
same kernel, where a convolution's bias is a kernel of its own. They need no search of convolution algorithms either.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from handlers.engines.fusing import FUSED
from handlers.errors import ModelError


class PointwiseConvolution(nn.Conv2d):
    """A convolution that takes the parameters of another one, whose kernel is one pixel that it visits each."""

    def __init__(self, of: nn.Conv2d) -> None:
        super().__init__(of.in_channels, of.out_channels, 1, device="meta")
        self.weight, self.bias = of.weight, of.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dim() != 4:
            return super().forward(input)
        batch, channels, height, width = input.shape
        pixels = input.permute(0, 2, 3, 1).reshape(-1, channels)  # of two dims, for which the bias is added in place
        result = functional.linear(pixels, self.weight.flatten(1), self.bias)
        return result.view(batch, height, width, self.out_channels).permute(0, 3, 1, 2)


def multiplied(module: nn.Module, model: str) -> nn.Module:
    """The module itself, with each such convolution replaced but for those that something is fused into or hooked to.

    Raises ModelError where there is none.
    """
    fused = {id(part) for whole in module.modules() if isinstance(whole, FUSED) for part in whole.children()}
    found = [
        (name, part) for name, part in module.named_modules() if name and _replaceable(part) and id(part) not in fused
    ]
    if not found:
        raise ModelError(f"{model}: engine.pointwise_as_matmul: no convolution has a kernel of one pixel")
    for name, part in found:
        assert isinstance(part, nn.Conv2d)
        module.set_submodule(name, PointwiseConvolution(part))
    return module


def _replaceable(part: nn.Module) -> bool:
    if type(part) is not nn.Conv2d or part._forward_hooks or part._forward_pre_hooks:
        return False
    plain = part.kernel_size == (1, 1) and part.stride == (1, 1) and part.groups == 1
    return plain and part.padding in (0, (0, 0), "valid", "same")
