"""A small network, and engines of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handlers.engines.engine import open_engine
from handlers.spec import ModelSpec

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3, stride=2)

    def forward(self, x):
        y = torch.relu(self.first(x))
        if x.shape[0] == 2:  # waits for the device, which no capture allows
            y = y / (1 + float(y.abs().max().item()))
        if x.shape[0] == 3:  # gives something else every time
            y = y + torch.rand_like(y)
        return self.second(y).mean((2, 3))

class Normal(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.normal, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        nn.init.uniform_(self.normal.running_mean)
        nn.init.uniform_(self.normal.running_var, 0.5, 2)

    def forward(self, x):
        return self.last(torch.relu(self.normal(self.convolution(x)))).mean((2, 3))
"""


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """Makes a loaded engine of the small network; all are closed at the end."""
    engines = []
    (tmp_path / "net.py").write_text(NET)

    def make(dtype: str = "fp16", **engine: object) -> Any:
        spec = ModelSpec.model_validate(
            {
                "name": "net",
                "engine": {
                    "kind": "torch",
                    "source": "net.py:Net",
                    "weights": "random:0",
                    "precision": dtype,
                    "execution": "graph",
                    **engine,
                },
                "inputs": [{"name": "x", "dtype": dtype, "dims": ["batch", 3, "side", "side"]}],
                "outputs": [{"name": "y", "dtype": dtype, "dims": ["batch", 8]}],
                "shapes": {"grid": {"batch": [1, 2, 3, 4], "side": [32, 64]}},
            }
        )
        opened = open_engine(spec, tmp_path, {})
        opened.load()
        engines.append(opened)
        return opened

    yield make
    for engine in engines:
        engine.close()
