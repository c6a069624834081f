from __future__ import annotations

import pytest
import torch
from torch import nn

from handlers.engines.folding import folded
from handlers.errors import ModelError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.normal = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        nn.init.uniform_(self.normal.running_mean)  # type: ignore[arg-type]
        nn.init.uniform_(self.normal.running_var, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.normal(self.convolution(x)))


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_folded_model_computes_the_same_without_the_normalisation() -> None:
    model = nn.Sequential(Block(), nn.Flatten(), nn.Linear(16, 2)).eval()
    x = torch.rand(2, 3, 4, 4)
    result = folded(model, "m")
    assert not any(isinstance(part, nn.BatchNorm2d) for part in result.modules())
    assert any(isinstance(part, nn.BatchNorm2d) for part in model.modules())
    torch.testing.assert_close(result(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_model_whose_way_depends_on_its_values_cannot_be_folded() -> None:
    with pytest.raises(ModelError, match="m: engine.fold_batchnorm: the model cannot be traced"):
        folded(Branching().eval(), "m")


class Twice(nn.Module):
    """One normalisation, behind a convolution and elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.normal = nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3)
        nn.init.uniform_(self.normal.running_mean)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normal(self.convolution(x)) + self.normal(x)


class Auxiliary(nn.Module):
    """What has a normalisation is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.head = nn.Conv2d(3, 4, 1), nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x)


def test_a_normalisation_that_stays_elsewhere_is_folded_where_it_can_be() -> None:
    model, x = Twice().eval(), torch.rand(1, 3, 4, 4)
    torch.testing.assert_close(folded(model, "m")(x), model(x), rtol=1e-5, atol=1e-5)


class SharedHead(nn.Module):
    """One convolution for two levels, each with a normalisation of its own, and its weights are read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 3, 1, bias=False)
        self.normals = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(2))
        for number, normal in enumerate(self.normals):
            nn.init.constant_(normal.running_mean, number + 0.5)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.normals[1](self.head(torch.relu(self.normals[0](self.head(x)))))
        return y + self.head.weight.sum()


def test_what_is_folded_into_one_call_of_a_layer_does_not_reach_the_others() -> None:
    model, x = SharedHead().eval(), torch.randn(1, 3, 4, 4)
    result = folded(model, "m")
    torch.testing.assert_close(result(x), model(x), rtol=1e-5, atol=1e-5)
    assert not any(node.target in ("normals.0", "normals.1") for node in result.graph.nodes)  # type: ignore[union-attr]


def test_layers_with_hooks_are_not_folded() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    model[0].register_forward_hook(lambda *given: 2 * given[2])
    with pytest.raises(ModelError, match="0 has hooks, which folding would lose"):
        folded(model, "m")


def test_a_model_without_such_normalisations_is_refused() -> None:
    for model in (nn.Sequential(nn.Conv2d(3, 4, 1)), nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1)), Auxiliary()):
        with pytest.raises(ModelError, match="m: engine.fold_batchnorm: no normalisation stands behind"):
            folded(model.eval(), "m")
