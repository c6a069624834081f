from __future__ import annotations

import json
from pathlib import Path

import pytest

from handlers.shapes import Shape
from serving.bench.result import BenchResult, ResultError
from serving.report.evidence import Coverage, CoveredShape, EvidenceError, gather, read_coverage, read_warmed
from warmup.bundle.manifest import BundledModel, Manifest, StoreSummary
from warmup.coverage import Comparison
from warmup.plan import Plan, PlannedShape
from warmup.proof import Proof


def manifest(proof: Proof) -> Manifest:
    plan = Plan("m", tuple(PlannedShape(shape.shape, shape.weight) for shape in proof))
    return Manifest(
        created="2026-01-01T00:00:00Z",
        identity={"gpu.arch": "none"},
        models={"m": BundledModel("1", "sha256:" + "0" * 64, plan, proof)},
        stores={"inductor": StoreSummary(0, 0)},
        files={},
    )


def test_all_kinds_together(
    warm_file: Path, cold_file: Path, coverage_file: Path, proof: Proof, cold: BenchResult
) -> None:
    evidence = gather(warm_file, [cold_file], coverage_file)
    assert evidence.proof("m") == proof and evidence.proof("other") is None
    assert evidence.runs_of("m") == (cold,) and evidence.runs_of("other") == ()
    assert evidence.models() == ("m",)
    timed, bare = (Shape.parse(f"x=1x3x{side}x{side}:fp32") for side in (160, 224))
    assert evidence.coverage == Coverage(
        "m",
        ("gfx942130.HIP.fdb.txt",),
        0.85,
        (
            CoveredShape(timed, 0.5, 20, 17, 2.0, Comparison(17, 6.0, 2.0), Comparison(4, 50.0, 0.5)),
            CoveredShape(bare, 0.5, 20, 0),
        ),
        "gfx942130",
    )


def test_a_bundle_and_its_manifest(tmp_path: Path, proof: Proof) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest(proof).to_bytes())
    folder, file = read_warmed(tmp_path), read_warmed(path)
    assert folder.proofs == file.proofs == (proof,)
    assert folder.identity == {"gpu.arch": "none"}
    assert folder.digest.startswith("sha256:")


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"models": 3}', '{"models": {"m": {"shapes": [{}]}}}', '{"format": 1}']
)
def test_what_holds_no_proof(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(EvidenceError, match=r"odd\.json"):
        read_warmed(path)


@pytest.mark.parametrize("change", [{"databases": None}, {"covered": "x"}, {"shapes": [{"shape": "nonsense"}]}])
def test_what_is_no_coverage(coverage_file: Path, change: dict) -> None:
    coverage_file.write_text(json.dumps(json.loads(coverage_file.read_text()) | change))
    with pytest.raises(EvidenceError, match=r"coverage\.json.*--db"):
        read_coverage(coverage_file)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no bundle here"):
        read_warmed(tmp_path)
    with pytest.raises(EvidenceError, match="No such file"):
        read_warmed(tmp_path / "absent.json")
    with pytest.raises(ResultError, match="No such file"):
        gather(None, [tmp_path / "absent.json"], None)
