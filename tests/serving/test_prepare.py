from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from handlers.loading import Model, find_models
from handlers.sources import model_digest
from serving.prepare import BundleMismatch, check_identity, check_models, prepare
from warmup.bundle.manifest import Bundle, BundledModel, Manifest
from warmup.plan import expand
from warmup.proof import Proof

MODEL = """
name: tiny
engine: {kind: python, source: "tiny.py:Tiny"}
inputs: [{name: x, dtype: fp32, dims: [batch]}]
shapes: {grid: {batch: [1, 2]}}
"""


@pytest.fixture
def model(tmp_path: Path) -> Model:
    folder = tmp_path / "store" / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.yaml").write_text(MODEL)
    (folder / "tiny.py").write_text("class Tiny:\n    def run(self, inputs):\n        return inputs\n")
    return find_models(tmp_path / "store")[0]


@pytest.fixture
def bundle(tmp_path: Path, model: Model) -> Bundle:
    digest = f"sha256:{model_digest(model.spec, model.folder)}"
    bundled = BundledModel("1", digest, expand(model.spec, model.folder), Proof("tiny", ()))
    manifest = Manifest(
        created="2026-01-01T00:00:00Z",
        identity={"machine": "x86_64", "torch": "2.0"},
        models={"tiny": bundled},
        stores={},
        files={},
    )
    return Bundle(tmp_path / "bundle", manifest, "sha256:" + "0" * 64)


def test_every_field_that_differs_is_named_with_both_values(bundle: Bundle) -> None:
    check_identity(bundle, {"machine": "x86_64", "torch": "2.0"})
    with pytest.raises(BundleMismatch) as caught:
        check_identity(bundle, {"machine": "aarch64", "torch": "2.1"})
    assert "machine: expected x86_64, found aarch64" in str(caught.value)
    assert "torch: expected 2.0, found 2.1" in str(caught.value)


def test_the_model_must_be_the_one_that_was_proven(bundle: Bundle, model: Model) -> None:
    check_models(bundle, [model])
    (model.folder / "tiny.py").write_text("class Tiny: ...\n")
    with pytest.raises(BundleMismatch, match=r"model tiny: expected sha256:\w{64}, found sha256:\w{64}"):
        check_models(bundle, [model])
    other = replace(model, spec=model.spec.model_copy(update={"name": "other"}))
    with pytest.raises(BundleMismatch, match=r"model other is not in it \(it has tiny\)"):
        check_models(bundle, [other])


def test_without_a_bundle_models_are_unproven_and_pay_themselves(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    prepared = prepare([model], None, scratch)
    (served,) = prepared.served
    assert served.proof is None
    assert prepared.bundle is None
    assert len(served.plan) == 2
    assert served.engine_options["torch.first_call"] == "compile"
