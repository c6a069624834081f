from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from handlers.shapes import Shape
from serving.bench.load import Sample
from serving.bench.result import BenchResult
from serving.report import figures
from serving.report.evidence import read_coverage
from warmup.proof import Proof, ShapeProof

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_first_requests_show_every_shape_and_every_run(cold: BenchResult) -> None:
    warm = replace(cold, label="warm")
    plot = figures.first_requests([cold, warm])
    assert plot is not None
    assert {*cold.asks, "cold", "warm"} <= set(texts(plot.svg))
    assert figures.COLD in plot.svg and figures.WARM in plot.svg


def test_a_shape_counts_with_its_first_good_answer(cold: BenchResult) -> None:
    samples = (Sample(0, 0.0, 0.001, 0.0, "503"), Sample(0, 0.1, 4.0, 0.0, "200"), Sample(0, 0.2, 0.1, 0.0, "200"))
    assert figures.first_by_ask(replace(cold, samples=samples)) == {cold.asks[0]: 4.0}


def test_latency_shows_failures_apart(cold: BenchResult) -> None:
    plot = figures.latency_by_number([cold])
    assert plot is not None
    assert {"cold", "cold, not answered well", "request"} <= set(texts(plot.svg))


def test_many_requests_become_a_picture(cold: BenchResult) -> None:
    many = replace(cold, samples=cold.samples[:-1] * 500)
    plot = figures.latency_by_number([many])
    assert plot is not None and "data:image/png" in plot.svg and len(plot.svg) < 300_000


def test_nothing_was_answered(cold: BenchResult) -> None:
    failed = replace(cold, samples=cold.samples[-1:])
    assert figures.latency_by_number([failed]) is None
    assert figures.first_requests([failed]) is None
    assert figures.first_requests([]) is None


def test_proof_times_leave_out_what_was_not_run(proof: Proof) -> None:
    plot = figures.proof_times(proof)
    assert plot is not None
    labels = texts(plot.svg)
    assert proof.shapes[0].shape.text in labels and proof.shapes[-1].shape.text not in labels


def test_the_slowest_of_many(proof: Proof) -> None:
    many = [
        ShapeProof(Shape.parse(f"x={size}:fp32"), 0.01, True, cold_seconds=size, first_seconds=0.1, steady_seconds=0.1)
        for size in range(1, 101)
    ]
    plot = figures.proof_times(Proof("m", tuple(many)))
    assert plot is not None and "The 40 slowest of 100." in plot.caption
    assert "x=100:fp32" in texts(plot.svg) and "x=60:fp32" not in texts(plot.svg)


def test_heat_map_says_what_was_gained(proof: Proof) -> None:
    plot = figures.heat_map(proof)
    assert plot is not None
    assert texts(plot.svg).count("300x") == 5  # 9 s against 30 ms; the sixth is hatched
    assert re.search(r"<pattern|url\(#heat-m-h", plot.svg)


@pytest.mark.parametrize("text", ["x=1x3:fp32"])
def test_one_shape_needs_no_map(text: str) -> None:
    assert figures.heat_map(Proof("m", (ShapeProof(Shape.parse(text), 1.0, True),))) is None


def test_ids_of_two_figures_differ(cold: BenchResult, proof: Proof) -> None:
    plots = [figures.latency_by_number([cold]), figures.proof_times(proof), figures.heat_map(proof)]
    ids = [identifier for plot in plots if plot for identifier in re.findall(r' id="([^"]+)"', plot.svg)]
    assert len(plots) == 3 and ids and len(ids) == len(set(ids))
    for plot in plots:
        assert plot is not None
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', plot.svg)) <= set(ids)


def test_predicted_times_show_each_choice_and_mark_what_is_of_some_problems_only(coverage_file: Path) -> None:
    coverage = read_coverage(coverage_file)
    plot = figures.predicted_times(coverage)
    assert plot is not None
    labels = texts(plot.svg)
    timed, bare = (shape.shape.text for shape in coverage.shapes)
    assert timed in labels and bare not in labels
    assert {"best solver", "default-like: the fastest dynamic solver"} <= set(labels)
    assert "naive solver, for some problems only" in labels and "naive solver" not in labels
    assert "gfx942130" in plot.caption
    assert figures.predicted_times(replace(coverage, shapes=coverage.shapes[1:])) is None
