from __future__ import annotations

import pytest

from warmup.miopen.names import Kind
from warmup.miopen.records import FAULTS, Fault, Item, inspect, parse_item

KEY = "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F"
OTHER = "3-224-224-7x7-64-112-112-16-3x3-2x2-1x1-0-NCHW-FP32-F"
GEMM = "GemmFwdRest:0.811666,3612672,miopenConvolutionFwdAlgoGEMM"
NAIVE = "ConvDirectNaiveConvFwd:2.14738,0,miopenConvolutionFwdAlgoDirect"
PERF_KEY = "2x64x56x56x1x3x3x1x64x16x1x1x0x1x1x0x1x1x0x0x1xNCHWxFP32xF"


def _codes(text: str, kind: Kind) -> list[str]:
    return [fault.code for fault in inspect(text, kind).faults]


@pytest.mark.parametrize(
    ("text", "time"), [("5.68561e-05", 5.68561e-05), ("5.68561e+06", 5.68561e6), ("245391", 245391)]
)
def test_times_are_written_in_many_ways(text: str, time: float) -> None:
    item = parse_item(f"ConvOclBwdWrW2<16>:{text},4831838208,miopenConvolutionBwdWeightsAlgoDirect")
    assert isinstance(item, Item) and item.solution
    assert (item.solver, item.solution.time_ms, item.solution.workspace) == ("ConvOclBwdWrW2<16>", time, 4831838208)


def test_the_old_format_names_the_algorithm_first() -> None:
    item = parse_item("miopenConvolutionFwdAlgoGEMM:GemmFwdRest,0.35955,10225600,miopenConvolutionFwdAlgoGEMM,not used")
    assert isinstance(item, Item) and item.solution
    assert item.solver == "GemmFwdRest"
    assert item.solution.algorithm == "miopenConvolutionFwdAlgoGEMM"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("GemmFwdRest:", "cut-record"),
        ("GemmFwdRest:0.5,0", "cut-record"),
        ("miopenConvolutionFwdAlgoGEMM:GemmFwdRest,0.5", "cut-record"),
        ("GemmFw", "bad-item"),
        (":0.5,0,miopenConvolutionFwdAlgoGEMM", "bad-item"),
        ("GemmFwdRest:0.5,0,miopenConvolutionFwdAlgoGEMM,1", "bad-item"),
        ("GemmFwdRest:0.5,0,miopenConvolutionFwdAlgo", "bad-algorithm"),
        ("GemmFwdRest:0.5,0,", "bad-algorithm"),
        ("GemmFwdRest:abc,0,miopenConvolutionFwdAlgoGEMM", "bad-time"),
        ("GemmFwdRest:nan,0,miopenConvolutionFwdAlgoGEMM", "bad-time"),
        ("GemmFwdRest:-1,0,miopenConvolutionFwdAlgoGEMM", "bad-time"),
        ("GemmFwdRest:,0,miopenConvolutionFwdAlgoGEMM", "bad-time"),
        ("GemmFwdRest:1e999,0,miopenConvolutionFwdAlgoGEMM", "bad-time"),
        ("GemmFwdRest:0.5,-1,miopenConvolutionFwdAlgoGEMM", "bad-workspace"),
        ("GemmFwdRest:0.5,18446744073709551615,miopenConvolutionFwdAlgoGEMM", "bad-workspace"),
        (f"GemmFwdRest:0.5,{'9' * 9999},miopenConvolutionFwdAlgoGEMM", "bad-workspace"),
        (f"GemmFwdRest:{'9' * 9999},0,miopenConvolutionFwdAlgoGEMM", "bad-time"),
    ],
)
def test_a_faulty_item_is_named(text: str, code: str) -> None:
    fault = parse_item(text)
    assert isinstance(fault, Fault)
    assert fault.code == code
    assert fault.code in FAULTS


def test_a_sound_line_has_no_faults_and_comes_back() -> None:
    line = inspect(f"{KEY}={GEMM};{NAIVE}", "find")
    assert not line.faults and not line.aside and line.usable
    assert line.records[0].line == f"{KEY}={GEMM};{NAIVE}"


@pytest.mark.parametrize(
    ("text", "codes", "saved", "usable"),
    [
        ("# a comment", ["ill-formed"], 0, False),
        ("=x", ["ill-formed"], 0, False),
        (KEY[:20], ["ill-formed"], 0, False),
        ("\0\0\0\0", ["leading-junk", "ill-formed"], 0, False),
        (f"{KEY}=", ["empty-record"], 0, True),
        (f"{KEY[3:]}={GEMM}", ["bad-key"], 0, True),
        (f" {KEY}={GEMM}", ["leading-junk"], 1, False),
        (f"\xef\xbb\xbf{KEY}={GEMM}", ["leading-junk"], 1, False),
        (f"{KEY}={GEMM}\r", ["crlf"], 1, True),
        (f"{KEY}={GEMM};ConvBin:", ["cut-record"], 1, False),
        (f"{KEY}={GEMM};{GEMM}", ["duplicate-solver"], 1, True),
        (f"{KEY}={GEMM};GemmFwd1x1_0_1:-1,0,miopenConvolutionFwdAlgoGEMM", ["bad-time"], 1, True),
        (f"{KEY}=GemmBwdRest:1,0,miopenConvolutionBwdDataAlgoGEMM", ["bad-algorithm"], 0, False),
        (f"{KEY}={GEMM};Conv\0\0:1,0,miopenConvolutionFwdAlgoGEMM", [], 1, True),
    ],
)
def test_each_fault_of_a_line(text: str, codes: list[str], saved: int, usable: bool) -> None:
    line = inspect(text, "find")
    assert [fault.code for fault in line.faults] == codes
    assert len(line.records) == saved
    assert line.usable == usable
    assert bool(line.aside) == (saved == 0 or codes not in (["leading-junk"], ["crlf"], []))


def test_two_glued_records_are_both_saved() -> None:
    line = inspect(f"{KEY}={GEMM}{OTHER}={NAIVE}", "find")
    assert [record.line for record in line.records] == [f"{KEY}={GEMM}", f"{OTHER}={NAIVE}"]
    assert "glued-lines" in [fault.code for fault in line.faults]
    assert not line.aside


def test_a_record_glued_to_a_cut_one_is_saved_and_the_cut_item_set_aside() -> None:
    cut = "GemmFwd1x1_0_1:0.5,0,miopenConvolutionFwdAl"
    line = inspect(f"{KEY}={GEMM};{cut}{OTHER}={NAIVE}", "find")
    assert [record.line for record in line.records] == [f"{KEY}={GEMM}", f"{OTHER}={NAIVE}"]
    assert line.aside == (f"{KEY}={cut}",)


def test_a_key_that_runs_into_the_digits_before_it_is_not_guessed() -> None:
    """``0.5`` cut to ``0.`` before ``3-224`` would read as another key."""
    line = inspect(f"{KEY}={GEMM};GemmFwd1x1_0_1:0.{OTHER}={NAIVE}", "find")
    assert [record.line for record in line.records] == [f"{KEY}={GEMM}"]
    assert line.aside == (f"{KEY}=GemmFwd1x1_0_1:0.{OTHER}={NAIVE}",)


def test_a_fusion_key_may_hold_commas_and_blanks() -> None:
    key = "16, 64, 56, 56, FP32 1x1, 2"
    line = inspect(f"{key}={GEMM}", "fusion")
    assert not line.faults
    assert line.records[0].key == key


def test_a_perf_db_line_has_other_keys_and_values() -> None:
    assert _codes(f"{PERF_KEY}=ConvOclDirectFwd:16,16,32,32,2,2,8,2,1", "perf") == []
    assert _codes(f"{KEY}=ConvOclDirectFwd:16", "perf") == ["bad-key"]
    assert _codes(f"{PERF_KEY}=ConvOclDirectFwd:", "perf") == ["cut-record"]
    assert _codes(f"{PERF_KEY}=ConvOclDirectFwd:1{PERF_KEY}=ConvOclDirectFwd:2", "perf") == ["glued-lines"]
    glued = inspect(f"{PERF_KEY}=ConvOclDirectFwd:16,1{PERF_KEY}=ConvOclDirectFwd:2", "perf")
    assert [record.items[0].text for record in glued.records] == ["ConvOclDirectFwd:16,1", "ConvOclDirectFwd:2"]
