"""A small fully convolutional network that reads digits of about 16 to 28 pixels anywhere in an image."""

from __future__ import annotations

import torch
from torch import nn

# A cell of the output covers 4 x 4 pixels and sees 35 x 35. The convolutions pad nothing: the input is padded once, so
# that the middle of what a cell sees is the middle of the cell, and so that more padding behind the image changes
# nothing in the cells before it.
BEFORE, BEHIND = 16, 15


class Block(nn.Sequential):
    """A 3 x 3 convolution without padding, normalization and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, stride=stride, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )


class DigitNet(nn.Module):
    """``batch x 1 x height x width`` (0 is background, 1 is ink) to ``batch x 13 x height/4 x width/4``.

    Channels 0 to 9 are the logits of the digits, 10 of the background; 11 and 12 are the x and y of the digit's centre
    from the cell's centre, in cells.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Block(1, 16, stride=2),
            Block(16, 32),
            Block(32, 32, stride=2),
            Block(32, 48),
            Block(48, 48),
            Block(48, 48),
        )
        self.head = nn.Conv2d(48, 13, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(nn.functional.pad(image, (BEFORE, BEHIND, BEFORE, BEHIND))))
