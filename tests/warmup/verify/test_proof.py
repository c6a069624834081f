"""Proofs that say that outputs were right, through a whole sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from handlers.loading import Model
from handlers.spec import load_spec
from warmup.bundle.manifest import open_bundle
from warmup.proof import ShapeProof
from warmup.sweep.sweep import Request, sweep


def retold(model: Model, name: str, line: str) -> Model:
    """The model under another name, with one more line in its description."""
    folder = model.folder.with_name(name)
    folder.mkdir()
    (folder / "net.onnx").write_bytes((model.folder / "net.onnx").read_bytes())
    text = (model.folder / "model.yaml").read_text().replace("name: right", f"name: {name}")
    (folder / "model.yaml").write_text(text + line)
    return Model(load_spec(folder), folder)


def test_a_bundle_says_that_its_outputs_were_right(tmp_path: Path, save: Callable[..., Model]) -> None:
    """Of two models with the same graph, one allows no rounding: its shapes are not proven, and say why."""
    model = save("right")
    strict = retold(model, "strict", "tolerance: 1.0e-12\n")
    outcome = sweep(Request((model, strict), tmp_path / "out"), lambda event: None)
    manifest = open_bundle(tmp_path / "out").manifest
    for proof in manifest.models["right"].proof:
        assert proof.proven and proof.outputs is not None
        assert proof.outputs.against == "ONNX Runtime on the CPU, unoptimised"
        assert 0 <= proof.outputs.relative <= proof.outputs.tolerance
        assert ShapeProof.from_json(proof.to_json()) == proof
    for proof in manifest.models["strict"].proof:
        assert not proof.proven and proof.outputs is None
        assert "differs from ONNX Runtime on the CPU, unoptimised by" in proof.reason
    assert not outcome.holds


def test_outputs_are_not_compared_where_that_is_not_wanted(tmp_path: Path, save: Callable[..., Model]) -> None:
    strict = retold(save("right"), "strict", "tolerance: 1.0e-12\n")
    assert sweep(Request((strict,), tmp_path / "out", verify=False), lambda event: None).holds
    proofs = open_bundle(tmp_path / "out").manifest.models["strict"].proof
    assert [proof.outputs for proof in proofs] == [None, None]
