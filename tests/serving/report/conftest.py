"""Evidence of each kind, as the commands write it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from handlers.shapes import Shape
from serving.bench.exposition import Lookups
from serving.bench.load import Sample
from serving.bench.machine import this_machine
from serving.bench.result import BenchResult
from warmup.proof import Proof, ShapeProof

SHAPES = [f"x={batch}x3x{side}x{side}:fp32" for batch in (1, 2) for side in (160, 224, 320)]


@pytest.fixture
def proof() -> Proof:
    """Six shapes, the last of which is not proven."""
    shapes = [
        ShapeProof(Shape.parse(text), 1 / 6, True, cold_seconds=9.0, first_seconds=0.03, steady_seconds=0.02)
        for text in SHAPES[:-1]
    ]
    return Proof("m", (*shapes, ShapeProof(Shape.parse(SHAPES[-1]), 1 / 6, False, reason="budget")))


@pytest.fixture
def cold() -> BenchResult:
    """Twelve requests that meet each shape twice, 5 s and then 0.1 s; the last one fails."""
    times = [5.0] * 6 + [0.1] * 6
    samples = [Sample(index % 6, index * 0.5, time, 0.0, "200") for index, time in enumerate(times[:-1])]
    return BenchResult(
        label="cold",
        url="http://127.0.0.1:1",
        model="m",
        started="2026-01-01T00:00:00+00:00",
        command="preheat bench <cold>",
        machine=this_machine(),
        seed=0,
        concurrency=1,
        rate=None,
        first=6,
        seconds=30.0,
        client_cpu=0.02,
        asks=tuple(SHAPES),
        samples=(*samples, Sample(5, 5.5, 0.4, 0.0, "503")),
        lookups=Lookups({"warm": 0, "padded": 0, "cold": 12}, 6),
    )


@pytest.fixture
def warm_file(tmp_path: Path, proof: Proof) -> Path:
    path = tmp_path / "warm.json"
    shapes = [shape.to_json() for shape in proof]
    path.write_text(json.dumps({"bundle": "sha256:" + "0" * 64, "models": {"m": {"coverage": 0.8, "shapes": shapes}}}))
    return path


@pytest.fixture
def cold_file(tmp_path: Path, cold: BenchResult) -> Path:
    path = tmp_path / "cold.json"
    path.write_text(json.dumps(cold.to_json()))
    return path


@pytest.fixture
def coverage_file(tmp_path: Path) -> Path:
    path = tmp_path / "coverage.json"
    whole = {"problems": 17, "ms": 6.0, "best_ms": 2.0, "ratio": 3.0}
    partly = {"problems": 4, "ms": 50.0, "best_ms": 0.5, "ratio": 100.0}
    times = {"predicted_ms": 2.0, "default": whole, "naive": partly}
    nothing = {"predicted_ms": None, "default": None, "naive": None}
    shapes = [
        {"shape": SHAPES[0], "weight": 0.5, "problems": 20, "covered": 17, **times},
        {"shape": SHAPES[1], "weight": 0.5, "problems": 20, "covered": 0, **nothing},
    ]
    document = {"model": "m", "databases": ["gfx942130.HIP.fdb.txt"], "device": "gfx942130", "covered": 0.85}
    path.write_text(json.dumps({**document, "shapes": shapes}))
    return path
