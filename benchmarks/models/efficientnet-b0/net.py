"""EfficientNet-B0 as torchvision builds it, without its published weights."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import efficientnet_b0  # pyright: ignore[reportMissingImports]


class EfficientNetB0(nn.Module):
    """``batch x 3 x height x width`` to ``batch x 1000`` logits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = efficientnet_b0(weights=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)
