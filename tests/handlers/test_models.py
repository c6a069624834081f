"""The models that this repository comes with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from handlers.engines.engine import example, open_engine
from handlers.loading import find_models, load_handler
from handlers.shapes import Shape
from handlers.spec import load_spec
from warmup.plan import expand

REPOSITORY = Path(__file__).parents[2]
STORES = (REPOSITORY / "model_store", REPOSITORY / "benchmarks" / "models")
FOLDERS = sorted(path.parent for store in STORES for path in store.glob("*/model.yaml"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_model_has_a_plan_and_a_handler(folder: Path) -> None:
    spec = load_spec(folder)
    assert len(expand(spec, folder)) > 0
    handler = load_handler(spec, folder)
    handler.initialize(spec, folder)


def test_the_benchmarks_models_are_not_served_by_default() -> None:
    assert [model.spec.name for model in find_models(STORES[0])] == ["text-detector", "digits"]


@pytest.mark.parametrize(
    ("folder", "parameters"),
    # As published for 1000 classes: 25.6 and 11.7 million (He et al., 2015; torchvision's documentation).
    [(STORES[0] / "resnet50", 25_557_032), (STORES[1] / "resnet18", 11_689_512)],
    ids=["resnet50", "resnet18"],
)
def test_the_residual_networks_are_what_they_say(folder: Path, parameters: int) -> None:
    from handlers.engines.module import build_module

    spec = load_spec(folder)
    assert sum(parameter.numel() for parameter in build_module(spec, folder).parameters()) == parameters
    engine = open_engine(spec, folder, {"torch.device": "cpu"})
    engine.load()
    logits = engine.run(example(Shape.parse("images=2x3x64x64:fp32")))["logits"]
    assert logits.shape == (2, 1000)
    assert np.isfinite(logits).all()
    assert not np.array_equal(logits[0], logits[1])


def test_the_null_model_returns_a_constant() -> None:
    folder = STORES[1] / "null"
    engine = open_engine(load_spec(folder), folder, {})
    engine.load()
    shape = Shape.parse("x=3x1x2x2:fp32")
    engine.warm(shape)
    assert np.array_equal(engine.run(example(shape))["y"], engine.run(example(shape, seed=1))["y"])
