"""``preheat warm --devices`` with processors that pass for accelerators: the parts are made, pinned and joined."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.cli.warm import app

pytest.importorskip("torch")
NET = """
from torch import nn

class Tiny(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
"""
MODEL = """
name: tiny
engine: {kind: torch, source: "net.py:Tiny", weights: "random:0", threads: 1}
inputs: [{name: x, dtype: float32, dims: [batch, 4]}]
outputs: [{name: y, dtype: float32, dims: [batch, 1]}]
shapes: {list: ["x=1x4:fp32", "x=2x4:fp32", "x=4x4:fp32"]}
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "net.py").write_text(NET)
    (folder / "model.yaml").write_text(MODEL)
    return folder.parent


@pytest.mark.slow
def test_parts_on_two_accelerators_make_one_bundle(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    out = tmp_path / "bundle"
    done = CliRunner().invoke(
        app, ["tiny", "--model-store", str(store), "--out", str(out), "--devices", "all", "--json"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["devices"] == ["0", "1"] and document["models"]["tiny"]["coverage"] == pytest.approx(1)
    assert (out / "manifest.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "models"]


def test_an_accelerator_that_is_not_there_is_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    done = CliRunner().invoke(
        app, ["tiny", "--model-store", str(store), "--out", str(tmp_path / "out"), "--devices", "0,7"]
    )
    assert done.exit_code == 2 and "'7' is not there" in done.output


def test_a_bundle_that_is_there_is_not_built_upon(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    done = CliRunner().invoke(
        app, ["tiny", "--model-store", str(store), "--out", str(tmp_path / "out"), "--devices", "all"]
    )
    assert done.exit_code == 2 and "is there already" in done.output
