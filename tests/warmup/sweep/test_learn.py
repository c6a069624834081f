from __future__ import annotations

from pathlib import Path

import pytest

from handlers.loading import Model
from handlers.shapes import Shape
from handlers.spec import load_spec
from warmup.stores.onnxruntime import OnnxRuntimeStore
from warmup.sweep.learn import admit, learn
from warmup.sweep.process import WorkerProcess

MODEL = """
name: python
engine: {kind: python, source: "run.py:Run"}
inputs: [{name: x, dtype: fp32, dims: [batch, width]}]
outputs: [{name: y, dtype: fp32, dims: [batch, width]}]
shapes: {list: ["x=1x8:fp32"]}
cold: run
learn: true
"""
RUN = """
class Run:
    def run(self, inputs):
        if inputs["x"].shape[1] == 3:
            raise ValueError("three")
        return {"y": inputs["x"]}
"""


@pytest.fixture
def model(tmp_path: Path) -> Model:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.yaml").write_text(MODEL)
    (folder / "run.py").write_text(RUN)
    return Model(load_spec(folder), folder)


@pytest.mark.parametrize(("shape", "reason"), [("x=1x16:fp32", ""), ("x=1x3:fp32", "tune: ValueError: three")])
def test_a_shape_outside_the_plan_is_proven_or_says_why_not(
    tmp_path: Path, model: Model, shape: str, reason: str
) -> None:
    seen: list[WorkerProcess] = []
    learnt = learn(model, Shape.parse(shape), tmp_path / "served", (), tmp_path / "place", seen.append)
    assert (learnt.proof.proven, learnt.proof.reason) == (not reason, reason)
    assert len(seen) == (1 if reason else 3)  # tune, seal, prove


def test_what_was_learnt_is_added_to_the_stores_in_use(tmp_path: Path) -> None:
    store = OnnxRuntimeStore()
    for root, names in (("learnt", ("a.onnx", "b.onnx")), ("served", ("a.onnx",))):
        (tmp_path / root / store.name).mkdir(parents=True)
        for name in names:
            (tmp_path / root / store.name / name).write_bytes(name.encode())
    added = admit(tmp_path / "learnt", tmp_path / "served", [store])
    assert added.keys() == {store.name} and list(added[store.name]) == ["b.onnx"]
    assert (tmp_path / "served" / store.name / "b.onnx").read_bytes() == b"b.onnx"
    assert admit(tmp_path / "learnt", tmp_path / "served", [store]) == {store.name: {}}
