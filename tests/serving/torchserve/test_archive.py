"""Archives for TorchServe: what is in them, and what model-config.yaml takes from plan and proof."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from handlers.errors import ModelError
from handlers.loading import Model
from handlers.sources import model_digest
from serving.prepare import BundleMismatch
from serving.torchserve.archive import ArchiveExists, Choices, archive, device_of, model_config
from warmup.bundle.manifest import Bundle, BundledModel, Manifest, manifest_digest
from warmup.plan import expand
from warmup.proof import Proof, ShapeProof


def _proof(model: Model, cold: float = 30.0, first: float = 2.0, steady: float = 0.5) -> Proof:
    plan = expand(model.spec, model.folder)
    return Proof("double", tuple(ShapeProof(p.shape, p.weight, True, cold, first, steady) for p in plan))


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Bundle]:
    """A bundle of a model without any store, in a directory."""

    def make(model: Model, digest: str = "") -> Bundle:
        proof = _proof(model)
        digest = digest or f"sha256:{model_digest(model.spec, model.folder)}"
        bundled = BundledModel(model.spec.version, digest, expand(model.spec, model.folder), proof)
        manifest = Manifest("2026-01-01T00:00:00Z", {"machine": "x86_64"}, {"double": bundled}, {}, {})
        data = manifest.to_bytes()
        root = tmp_path / "bundle"
        root.mkdir()
        (root / "manifest.json").write_bytes(data)
        return Bundle(root, manifest, manifest_digest(data))

    return make


def test_batches_and_times_come_from_plan_and_proof(make_model: Callable[..., Model]) -> None:
    model = make_model()
    plan = expand(model.spec, model.folder)
    config = model_config(model.spec, plan, _proof(model), {"bundle": "b"}, Choices(workers=3))
    assert (config["minWorkers"], config["maxWorkers"], config["batchSize"]) == (3, 3, 4)
    assert (config["maxBatchDelay"], config["jobQueueSize"], config["deviceType"]) == (5, 32, "cpu")
    assert config["startupTimeout"] == 120 + 4 * 4 * 2
    assert config["responseTimeout"] == 8  # timeout_s rounded up, which is more than four batches of two seconds
    assert config["handler"] == {"preheat": {"bundle": "b"}}
    slow = model_config(model.spec, plan, _proof(model, steady=1.0), {}, Choices())
    assert slow["responseTimeout"] == 16


def test_what_may_run_cold_gets_the_time_for_it(make_model: Callable[..., Model]) -> None:
    model = make_model("run")
    config = model_config(model.spec, expand(model.spec, model.folder), _proof(model), {}, Choices())
    assert config["responseTimeout"] == 8 + 4 * 30


def test_without_a_proof_times_are_torchserves_own(make_model: Callable[..., Model]) -> None:
    model = make_model()
    config = model_config(model.spec, expand(model.spec, model.folder), None, {}, Choices())
    assert (config["startupTimeout"], config["responseTimeout"]) == (120, 8)


def test_on_a_gpu_each_worker_sees_its_own(make_model: Callable[..., Model]) -> None:
    model = make_model()
    config = model_config(model.spec, expand(model.spec, model.folder), None, {}, Choices(device="gpu"))
    assert (config["deviceType"], config["parallelType"], config["parallelLevel"]) == ("gpu", "custom", 1)


def test_the_device_is_that_of_the_proof(make_model: Callable[..., Model], make_bundle: Callable[..., Bundle]) -> None:
    bundle = make_bundle(make_model())
    on_gpu = replace(bundle.manifest, identity={"gpu_arch": "gfx942"})
    assert device_of(None) == device_of(bundle) == "cpu"
    assert device_of(replace(bundle, manifest=on_gpu)) == "gpu"


def test_an_archive_has_the_model_the_bundle_and_the_handler(
    make_model: Callable[..., Model], make_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    model = make_model()
    bundle = make_bundle(model)
    beside = Path(tempfile.gettempdir()) / model.spec.name
    there = beside.exists()
    path = archive(model, bundle, tmp_path / "out", Choices())
    assert (path, beside.exists()) == (tmp_path / "out" / "double.mar", there)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["double.mar"]
    with zipfile.ZipFile(path) as made:
        names = set(made.namelist())
        config = yaml.safe_load(made.read("model-config.yaml"))
        assert b'"modelVersion": "3"' in made.read("MAR-INF/MANIFEST.json")
    model_files = {"model/model.yaml", "model/net.py", "model/handler.py"}
    assert names == model_files | {
        "bundle.tar",
        "preheat_handler.py",
        "model-config.yaml",
        "MAR-INF/MANIFEST.json",
    }
    assert config["handler"]["preheat"] == {
        "model": "model",
        "require_proof": True,
        "bundle": "bundle.tar",
        "digest": bundle.digest,
    }


def test_a_bundle_may_be_referred_to(
    make_model: Callable[..., Model], make_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    model = make_model()
    path = archive(model, make_bundle(model), tmp_path / "out", Choices(reference="s3://bundles/v1"))
    with zipfile.ZipFile(path) as made:
        assert "bundle.tar" not in made.namelist()
        assert yaml.safe_load(made.read("model-config.yaml"))["handler"]["preheat"]["bundle"] == "s3://bundles/v1"


def test_a_bundle_of_other_files_is_refused(
    make_model: Callable[..., Model], make_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    model = make_model()
    bundle = make_bundle(model, "sha256:" + "0" * 64)
    with pytest.raises(BundleMismatch, match="model double: expected sha256:0000") as caught:
        archive(model, bundle, tmp_path / "out", Choices())
    assert [difference.field for difference in caught.value.differences] == ["model double"]
    assert not (tmp_path / "out").exists()


def test_an_archive_that_is_there_stays_unless_it_is_to_go(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model = make_model()
    target = tmp_path / "double.mar"
    target.write_bytes(b"mine")
    with pytest.raises(ArchiveExists, match="--force"):
        archive(model, None, tmp_path, Choices())
    assert target.read_bytes() == b"mine"
    archive(model, None, tmp_path, Choices(), force=True)
    assert zipfile.is_zipfile(target)


def test_a_model_whose_parts_are_missing_is_refused(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model = make_model()
    (model.folder / "net.py").unlink()
    with pytest.raises(ModelError, match="net.py"):
        archive(model, None, tmp_path / "out", Choices())
    assert not (tmp_path / "out").exists()
