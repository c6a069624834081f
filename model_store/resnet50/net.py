"""ResNet-50 in plain PyTorch (He et al., "Deep Residual Learning for Image Recognition", 2015), with the stride in the
3 x 3 convolution of a bottleneck, as most published weights have it.
"""

from __future__ import annotations

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1 x 1 down to ``width`` channels, 3 x 3, 1 x 1 up to four times as many, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.down = _convolution(inputs, width, 1)
        self.middle = _convolution(width, width, 3, stride)
        self.up = _convolution(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.down(x))
        y = torch.relu(self.middle(y))
        return torch.relu(self.up(y) + self.shortcut(x))


class ResNet50(nn.Module):
    """``batch x 3 x height x width`` to ``batch x classes`` logits."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        stages = []
        inputs = 64
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for index in range(depth):
                stages.append(Bottleneck(inputs, width, stride if index == 0 else 1))
                inputs = 4 * width
        self.stages = nn.Sequential(*stages)
        self.classify = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.stages(self.stem(x)).mean((2, 3)))


def _convolution(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False), nn.BatchNorm2d(outputs)
    )
