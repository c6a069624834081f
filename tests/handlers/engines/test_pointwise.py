from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from handlers.engines.folding import folded
from handlers.engines.fusing import fused
from handlers.engines.pointwise import PointwiseConvolution, multiplied
from handlers.errors import ModelError


class Squeezed(nn.Module):
    """Every kind of convolution of one pixel that is a matrix product, and every kind that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.without_bias = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1, bias=False)
        self.same = nn.Conv2d(4, 4, 1, padding="same")
        self.strided, self.padded = nn.Conv2d(4, 4, 1, stride=2), nn.Conv2d(4, 4, 1, padding=1)
        self.grouped, self.wide = nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.same(self.without_bias(torch.sigmoid(self.plain(x))))
        return self.strided(self.padded(self.grouped(self.wide(x))))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dims", [(2, 4, 6, 5), (1, 4, 1, 1), (4, 6, 5)])
def test_the_same_is_computed(last: bool, dims: tuple[int, ...]) -> None:
    model = Squeezed().eval()
    result = multiplied(copy.deepcopy(model), "m")
    x = torch.randn(dims)
    if last and x.dim() == 4:
        result, x = result.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(result(x), model(x), rtol=1e-5, atol=1e-6)
    names = [name for name, part in result.named_modules() if isinstance(part, PointwiseConvolution)]
    assert names == ["plain", "without_bias", "same"]


def test_in_channels_last_nothing_is_copied() -> None:
    convolution = PointwiseConvolution(nn.Conv2d(4, 8, 1)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 4, 6, 5).contiguous(memory_format=torch.channels_last)
    with torch.profiler.profile() as profile, torch.inference_mode():
        y = convolution(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not {"aten::clone", "aten::convolution"} & {event.key for event in profile.key_averages()}


def test_weights_are_taken_not_copied_and_can_be_read_by_others() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3))
    weight = model[0].weight
    assert multiplied(model, "m") is model
    assert model[0].weight is weight and list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def doubled(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def test_what_has_hooks_stays() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    model[0].register_forward_hook(doubled)
    x = torch.randn(1, 4, 3, 3)
    expected = model(x)
    torch.testing.assert_close(multiplied(model, "m")(x), expected)
    assert type(model[0]) is nn.Conv2d


def test_after_folding_and_fusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch,
        "cudnn_convolution_relu",
        lambda x, weight, bias, *how: torch.relu(nn.functional.conv2d(x, weight, bias, *how)),
    )
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.SiLU()
    ).eval()
    nn.init.uniform_(model[1].running_mean)  # type: ignore[arg-type]
    nn.init.uniform_(model[4].running_var, 0.5, 2)  # type: ignore[arg-type]
    x = torch.randn(1, 3, 8, 8)
    result = multiplied(fused(folded(model, "m"), "m"), "m")
    torch.testing.assert_close(result(x), model(x), rtol=1e-5, atol=1e-6)
    assert sum(isinstance(part, PointwiseConvolution) for part in result.modules()) == 1


def test_a_model_without_any_is_told() -> None:
    with pytest.raises(ModelError, match="m: engine.pointwise_as_matmul: no convolution has a kernel of one pixel"):
        multiplied(nn.Sequential(nn.Conv2d(4, 4, 3)), "m")
