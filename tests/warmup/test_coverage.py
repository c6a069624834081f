from __future__ import annotations

import bz2
from pathlib import Path

import pytest

from handlers.shapes import Shape
from warmup.coverage import CoverageError, Records, cover
from warmup.miopen.finddb import NotADatabase
from warmup.miopen.problem import ConvProblem
from warmup.plan import Plan, PlannedShape
from warmup.trace.result import PlanTrace, ShapeTrace

PLAIN = "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F"
POINT = "64-56-56-1x1-256-56-56-16-0x0-1x1-1x1-0-NCHW-FP16-F"
UP = "64-28-28-4x4-32-56-56-16-1x1-2x2-1x1-0-NCHW-FP32-B"
FWD, BWD = "miopenConvolutionFwdAlgo", "miopenConvolutionBwdDataAlgo"
PLAIN_LINE = (
    f"{PLAIN}=ConvDirectNaiveConvFwd:9.0,0,{FWD}Direct;ConvAsm3x3U:1.5,0,{FWD}Direct;GemmFwdRest:2.0,4096,{FWD}GEMM"
)
POINT_LINE = f"{POINT}=ConvAsm1x1U:0.25,0,{FWD}Direct"


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def trace_of(*keys_and_counts: tuple[str, int]) -> tuple[Plan, PlanTrace]:
    shape = Shape.parse("x=16x64x56x56:fp16")
    calls = {ConvProblem.from_find_db_key(key): count for key, count in keys_and_counts}
    return Plan("m", (PlannedShape(shape, 1.0),)), PlanTrace((ShapeTrace(shape, calls, {"empty input": 1}),))


def test_times_count_every_execution_and_the_missing_are_named(tmp_path):
    database = write(tmp_path / "gfx942130.HIP.fdb.txt", PLAIN_LINE, POINT_LINE, "junk")
    plan, trace = trace_of((PLAIN, 3), (POINT, 2), (UP, 1))
    records = Records.load([database], trace.keys.values())
    (shape,) = cover(plan, trace, records)
    assert (shape.problems, shape.executions, shape.covered, shape.missing) == (3, 6, 2, (UP,))
    assert shape.best_ms == pytest.approx(3 * 1.5 + 2 * 0.25)
    assert shape.default is not None and shape.naive is not None
    assert (shape.default.problems, shape.default.ratio) == (1, pytest.approx(2.0 / 1.5))
    assert (shape.naive.ms, shape.naive.best_ms) == (pytest.approx(27.0), pytest.approx(4.5))
    assert records.device == "gfx942130"
    document = shape.to_json()
    assert document["missing"] == [UP]
    assert document["predicted_ms"] == shape.best_ms
    assert document["elsewhere"] == {"empty input": 1}


def test_a_plain_and_a_transposed_convolution_may_share_a_record(tmp_path):
    twin = ConvProblem.from_dims(
        (16, 64, 28, 28), (64, 32, 4, 4), pad=(1, 1), stride=(2, 2), dilation=(1, 1), transposed=True
    )
    plan, trace = trace_of((UP, 1))
    (shape,) = trace
    both = PlanTrace((ShapeTrace(shape.shape, {**shape.calls, twin: 1}),))
    assert both.keys[twin] == UP and len(both.problems) == 2
    (absent,) = cover(plan, both, Records({}, (), None))
    assert (absent.covered, absent.missing) == (0, (UP,))
    database = write(tmp_path / "db.txt", f"{UP}=GemmBwdRest:0.5,0,{BWD}GEMM")
    (present,) = cover(plan, both, Records.load([database], [UP]))
    assert (present.covered, present.missing, present.best_ms) == (2, (), 1.0)


def test_a_time_of_zero_is_no_measurement(tmp_path):
    database = write(tmp_path / "a.txt", f"{PLAIN}=ConvAsm3x3U:0,0,{FWD}Direct", POINT_LINE)
    plan, trace = trace_of((PLAIN, 1))
    (shape,) = cover(plan, trace, Records.load([database], trace.keys.values()))
    assert (shape.covered, shape.best_ms, shape.default, shape.naive) == (1, None, None, None)


def test_a_users_record_comes_before_the_systems(tmp_path):
    system = write(tmp_path / "gfx942130.HIP.fdb.txt", PLAIN_LINE, POINT_LINE)
    user = write(tmp_path / "gfx942130.HIP.3_4_0_.ufdb.txt", f"{PLAIN}=ConvAsm3x3U:0.125,0,{FWD}Direct")
    plan, trace = trace_of((PLAIN, 1), (POINT, 1))
    records = Records.load([system, user], trace.keys.values())
    assert records.sources == (user, system)
    (shape,) = cover(plan, trace, records)
    assert shape.best_ms == pytest.approx(0.125 + 0.25)


def test_a_damaged_record_is_missing_as_it_is_for_miopen(tmp_path):
    database = write(tmp_path / "gfx942130.HIP.fdb.txt", f"{PLAIN}=ConvAsm3x3U:", POINT_LINE)
    plan, trace = trace_of((PLAIN, 1), (POINT, 1))
    (shape,) = cover(plan, trace, Records.load([database], trace.keys.values()))
    assert shape.missing == (PLAIN,)


def test_a_compressed_database(tmp_path):
    path = tmp_path / "gfx942130.HIP.fdb.txt.bz2"
    path.write_bytes(bz2.compress(f"{PLAIN_LINE}\n".encode()))
    assert set(Records.load([path], [PLAIN, POINT]).solutions) == {PLAIN}


def test_databases_of_two_devices_cannot_be_added(tmp_path):
    one = write(tmp_path / "gfx942130.HIP.fdb.txt", PLAIN_LINE)
    other = write(tmp_path / "gfx90a68.HIP.fdb.txt", PLAIN_LINE)
    with pytest.raises(CoverageError, match="different devices.*gfx942130.*gfx90a68"):
        Records.load([one, other], [PLAIN])


def test_files_that_cannot_answer(tmp_path):
    with pytest.raises(CoverageError, match="No such file"):
        Records.load([tmp_path / "none.txt"], [PLAIN])
    with pytest.raises(CoverageError, match="a perf database"):
        Records.load([write(tmp_path / "gfx942130.db.txt")], [PLAIN])
    with pytest.raises(NotADatabase):
        Records.load([write(tmp_path / "notes.txt", "hello", "world=1")], [PLAIN])
