"""Plans whose shapes share their code (``dynamic_shapes``): proven as a whole, with the real compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from handlers.errors import ModelError
from handlers.loading import Model
from handlers.spec import load_spec
from tests.warmup.sweep.test_sweep import run, states

NET = """
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        if x.shape[1] == 5:
            raise ValueError("five is not served")
        return x.relu() * 2 + x.mean()
"""


def model(folder: Path, *shapes: str) -> Model:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.py").write_text(NET)
    tensor = {"dtype": "fp32", "dims": ["n", "m"]}
    engine = {"kind": "torch", "source": "net.py:Net", "weights": "random:0", "execution": "compile"}
    document = {
        "name": "shared",
        "engine": engine | {"dynamic_shapes": True, "threads": 1},
        "inputs": [tensor | {"name": "x"}],
        "outputs": [tensor | {"name": "y"}],
        "shapes": {"list": [f"x={dims}:fp32" for dims in shapes]},
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(document))
    return Model(load_spec(folder), folder)


@pytest.mark.slow
def test_a_longer_plan_is_proven_as_a_whole_and_another_weight_is_not(tmp_path: Path) -> None:
    folder, out = tmp_path / "models" / "shared", tmp_path / "bundle"
    first, _ = run(model(folder, "1x8"), out=out)
    assert states(first) == {"x=1x8:fp32": "proven"}
    second, watcher = run(model(folder, "1x8", "4x16"), out=out)
    assert set(states(second).values()) == {"proven"} and second.ran == 2
    assert watcher.runs()[:2] == [("tune", "x=4x16:fp32"), ("tune", "x=1x8:fp32")]  # as engines warm them
    third, watcher = run(model(folder, "4x16", "1x8"), out=out)
    assert third.ran == 0 and watcher.runs() == [] and set(states(third).values()) == {"proven"}


@pytest.mark.slow
def test_where_one_shape_fails_none_is_proven(tmp_path: Path) -> None:
    outcome, _ = run(model(tmp_path / "models" / "shared", "2x5", "1x4"), out=tmp_path / "bundle")
    assert not outcome.holds and outcome.bundle is None
    found = states(outcome)
    assert found["x=2x5:fp32"].startswith("tune: ")
    assert found["x=1x4:fp32"] == "shares its code with x=2x5:fp32, which is not proven"


def test_such_a_plan_cannot_be_divided(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="shared: engine.dynamic_shapes: code for all shapes is shared"):
        run(model(tmp_path / "models" / "shared", "2x4", "1x4"), out=tmp_path / "bundle", shard=(1, 2))
