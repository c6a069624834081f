"""EfficientNet-B0 as torchvision builds it, without its published weights."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import efficientnet_b0  # pyright: ignore[reportMissingImports]

_LARGEST_BIAS = 30.0


class EfficientNetB0(nn.Module):
    """``batch x 3 x height x width`` to ``batch x 1000`` logits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = efficientnet_b0(weights=None).eval()
        _settle(self.network)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def _settle(network: nn.Module) -> None:
    """Scales random weights so that outputs can be compared.

    As torchvision draws them, signals vanish on their way: fp16 rounds the logits to zero, whatever the input and
    whatever is computed. So each normalisation gets the scale of what it normalises. What rounding in fp16 does to the
    logits is then more than a thousandth of them, so each class gets a bias, as training gives one, beside which it is
    less. A small part of the logits comes from the image therefore; how large it is stands beside what is compared
    (``benchmarks/gpu/handler.py``).
    """

    def scale(module: nn.BatchNorm2d, inputs: tuple[torch.Tensor, ...]) -> None:
        assert module.running_var is not None
        module.running_var.copy_(inputs[0].square().mean((0, 2, 3)))

    normalisations = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    hooks = [part.register_forward_pre_hook(scale) for part in normalisations]
    with torch.no_grad():
        network(torch.rand(2, 3, 224, 224) - 0.5)
        bias = network.get_parameter("classifier.1.bias")
        bias.normal_()
        bias *= _LARGEST_BIAS / bias.abs().max()
    for hook in hooks:
        hook.remove()
