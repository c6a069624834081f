"""The network of ``digits`` in a file of its own: TorchServe takes the one class that a model file defines."""

from __future__ import annotations

from net import DigitNet


class Digits(DigitNet):
    pass
