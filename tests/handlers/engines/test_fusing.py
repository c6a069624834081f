from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from handlers.engines.folding import folded
from handlers.engines.fusing import ConvolutionAddRelu, ConvolutionRelu, fused
from handlers.errors import ModelError


@pytest.fixture(autouse=True)
def cudnn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """cuDNN's functions by their definition (PyTorch has them for GPUs only), and which were called."""
    called: list[str] = []

    def relu(x: Any, weight: Any, bias: Any, *how: Any) -> torch.Tensor:
        called.append("relu")
        return torch.relu(functional.conv2d(x, weight, bias, *how))

    def add_relu(x: Any, weight: Any, z: Any, alpha: float, bias: Any, *how: Any) -> torch.Tensor:
        called.append("add_relu")
        made = functional.conv2d(x, weight, bias, *how)
        assert made.shape == z.shape
        return torch.relu(made + alpha * z)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", relu)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", add_relu)
    return called


class Block(nn.Module):
    """A residual block, with each way to write a ReLU and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.third = nn.Conv2d(4, 8, 3, stride=2, padding=1, dilation=2)
        self.shortcut = nn.Conv2d(4, 8, 1, stride=2, padding=0)
        self.activate = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first(x))
        y = self.second(y)
        y += x
        y = self.activate(y)
        return (self.third(y)[:, :, :7, :7] + self.shortcut(y)[:, :, :7, :7]).relu()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = Block(), nn.Conv2d(8, 2, 3)
        self.shortcut = nn.Conv2d(8, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x)
        return torch.relu(torch.add(self.shortcut(x), self.last(x)))


def test_a_fused_model_computes_the_same(cudnn: list[str]) -> None:
    model = Residual().eval()
    x = torch.randn(2, 4, 16, 16)
    result = fused(model, "m")
    kinds = [type(part) for part in result.modules()]
    assert kinds.count(ConvolutionRelu) == 1 and kinds.count(ConvolutionAddRelu) == 2
    assert not any(isinstance(part, (ConvolutionRelu, ConvolutionAddRelu)) for part in model.modules())
    torch.testing.assert_close(result(x), model(x), rtol=1e-5, atol=1e-6)
    assert cudnn == ["relu", "add_relu", "add_relu"]


def test_a_folded_model_is_fused(cudnn: list[str]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    nn.init.uniform_(model[1].running_mean)  # type: ignore[arg-type]
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(fused(folded(model, "m"), "m")(x), model(x), rtol=1e-5, atol=1e-6)
    assert cudnn == ["relu"]


class Broadcast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolution(x) + x.mean((2, 3), keepdim=True))


def test_what_would_be_broadcast_is_added_as_before(cudnn: list[str]) -> None:
    model = Broadcast().eval()
    for side in (1, 5):
        x = torch.randn(2, 4, side, side)
        torch.testing.assert_close(fused(model, "m")(x), model(x))
    assert cudnn == ["add_relu"]  # of the image of one pixel


class Shared(nn.Module):
    """Convolutions that nothing may be fused into, and one that may."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.used, self.read = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.mirrored = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.named = nn.Conv2d(4, 4, 3, padding="same")
        self.fusible = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.twice(torch.relu(self.twice(x))))  # called twice
        y = self.used(x)
        x = torch.relu(y) - y  # used twice
        x = torch.relu(self.named(torch.relu(self.mirrored(x))))  # padded otherwise
        x = torch.relu(torch.add(self.used.weight.sum(), x, alpha=2))
        x = torch.relu(input=self.read(x)) + self.read.weight.sum()  # whose weights are read, and called by name
        return torch.relu(self.fusible(torch.relu(x + 1)))


def test_what_others_see_is_left_alone(cudnn: list[str]) -> None:
    model = Shared().eval()
    x = torch.randn(1, 4, 6, 6)
    result = fused(model, "m")
    torch.testing.assert_close(result(x), model(x), rtol=1e-5, atol=1e-6)
    assert cudnn == ["relu"]


class Changed(nn.Module):
    """A convolution whose input is changed between it and the sum, and a fusible one, so that there is something."""

    def __init__(self, change: Callable[[torch.Tensor], object] | None) -> None:
        super().__init__()
        self.first, self.second, self.inplace = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x)) - 0.3
        y = self.second(x)
        self.change(x) if self.change is not None else self.inplace(x)
        return torch.relu(y + x)


@pytest.mark.parametrize(
    "change",
    [
        None,
        lambda x: functional.relu(x, inplace=True),
        lambda x: x.mul_(2),
        lambda x: torch.relu_(x),
        lambda x: torch.mul(x, 2, out=x),
    ],
)
def test_a_convolution_is_not_moved_past_a_change_of_its_input(cudnn: list[str], change: Any) -> None:
    model = Changed(change).eval()
    x = torch.randn(2, 4, 5, 5)
    with torch.inference_mode():
        torch.testing.assert_close(fused(model, "m")(x.clone()), model(x), rtol=1e-5, atol=1e-6)
    assert cudnn == ["relu"]


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolution(x) + x)


def test_an_image_without_a_batch_axis_is_added_as_before(cudnn: list[str]) -> None:
    model, x = Sum().eval(), torch.randn(4, 6, 6)
    torch.testing.assert_close(fused(model, "m")(x), model(x))
    assert cudnn == []


class Twofold(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.convolution, self.other, self.what = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), what
        if what == "hook":
            self.convolution.register_forward_hook(lambda *given: 2 * given[2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.other(x)) - 0.3
        y = self.convolution(x)
        if self.what == "itself":
            return torch.relu(y + y)
        if self.what == "size":
            return torch.relu(y + x.size(1))
        if self.what == "mask":
            return torch.relu(y + (x > 0))
        if self.what == "dunder":
            x.__imul__(2)
        return torch.relu(y + x)


@pytest.mark.parametrize("what", ["itself", "size", "mask", "dunder", "hook"])
def test_sums_and_layers_that_cudnn_cannot_take_are_computed_as_before(cudnn: list[str], what: str) -> None:
    model, x = Twofold(what).eval(), torch.randn(2, 4, 5, 5)
    with torch.inference_mode():
        torch.testing.assert_close(fused(model, "m")(x.clone()), model(x.clone()), rtol=1e-5, atol=1e-6)
    assert cudnn == ["relu"]


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_what_cannot_be_traced_or_has_nothing_to_fuse_is_refused() -> None:
    with pytest.raises(ModelError, match="m: engine.fuse_activations: the model cannot be traced"):
        fused(Branching().eval(), "m")
    with pytest.raises(ModelError, match="m: engine.fuse_activations: no ReLU stands behind a convolution"):
        fused(nn.Sequential(nn.Conv2d(3, 4, 1), nn.SiLU()).eval(), "m")
