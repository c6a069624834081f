"""What the tests of handlers share: small models in folders of their own, and images as clients send them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from handlers.spec import ModelSpec

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class Two(nn.Module):
    def forward(self, x):
        return {"low": x.amin((1, 2, 3)), "high": x.amax((1, 2, 3)), "unasked": x}


class Breaks(nn.Module):
    def forward(self, x):
        torch._dynamo.graph_break()
        return x


class Refuses(nn.Module):
    def forward(self, x):
        if x.shape[-1] == 13:
            raise ValueError("thirteen brings bad luck")
        return x


class NotAModule:
    pass
"""


@pytest.fixture
def describe() -> Callable[..., ModelSpec]:
    """A description of an image model ``x -> y`` (``batch x 3 x height x width`` to ``batch x 4 x ...``), with changes
    by top-level key; ``engine`` replaces the engine's keys one by one."""

    def make(engine: dict[str, Any], **changes: Any) -> ModelSpec:
        document: dict[str, Any] = {
            "name": "model",
            "engine": engine,
            "inputs": [{"name": "x", "dtype": "float32", "dims": ["batch", 3, "height", "width"]}],
            "outputs": [{"name": "y", "dtype": "float32", "dims": ["batch", 4, "height", "width"]}],
            "shapes": {"list": ["x=1x3x8x8:fp32"]},
        }
        return ModelSpec.model_validate(document | changes)

    return make


@pytest.fixture
def net_folder(tmp_path: Path) -> Path:
    """A model's folder with the classes of NET in net.py."""
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """The bytes of an image file: of an array, or of a Pillow image, as ``format``."""

    def make(image: np.ndarray | Image.Image, format: str = "PNG", **options: Any) -> bytes:
        if isinstance(image, np.ndarray):
            image = Image.fromarray(image)
        file = io.BytesIO()
        image.save(file, format, **options)
        return file.getvalue()

    return make
