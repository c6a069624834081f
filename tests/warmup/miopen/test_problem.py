from __future__ import annotations

import bz2
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.miopen.keys import DTYPES, ProblemError
from warmup.miopen.perfdb import PerfDb
from warmup.miopen.problem import DIRECTIONS, ConvProblem

KEYS = (
    "3-224-224-7x7-64-112-112-16-3x3-2x2-1x1-0-NCHW-FP32-F",
    "64-112-112-7x7-3-224-224-16-3x3-2x2-1x1-0-NCHW-FP32-B",
    "32-28-28-3x3-64-28-28-16-1x1-1x1-1x1-0-NCHW-FP32-F_g4",
    "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NHWC-NCHW-NHWC-FP32-W",
    "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-INT32INT8INT8-B",
    "16-8-28-30-3x5x3-32-8-14-30-2-1x2x1-1x2x1-1x1x1-0-NCDHW-FP32-F",
    "32-8-14-30-3x5x3-16-8-28-30-2-1x2x1-1x2x1-1x1x1-0-NDHWC-NDHWC-NDHWC-FP32-W_g2_ciFP8_cwBF8_coFP8",
)


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    rank = draw(st.sampled_from((2, 3)))
    size = st.integers(1, 9)

    def triple(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(values) for _ in range(rank))

    groups = draw(st.sampled_from((1, 2, 3, 32)))
    types, casts = st.sampled_from(DTYPES), st.sampled_from((None, "FP8", "BF8"))
    default, last = ("NCHW", "NHWC") if rank == 2 else ("NCDHW", "NDHWC")
    layout = st.sampled_from((default, last))
    return ConvProblem(
        batch=draw(size),
        in_channels=groups * draw(size),
        in_spatial=triple(size),
        out_channels=groups * draw(size),
        out_spatial=triple(size),
        filter=triple(size),
        pad=triple(st.integers(0, 4)),
        stride=triple(size),
        dilation=triple(size),
        groups=groups,
        transposed=draw(st.booleans()),
        direction=draw(st.sampled_from(DIRECTIONS)),
        layouts=(draw(layout), draw(layout), draw(layout)),
        dtypes=(draw(types), draw(types), draw(types)),
        casts=(draw(casts), draw(casts), draw(casts)),
    )


@pytest.mark.parametrize("key", KEYS)
def test_a_key_comes_back_as_it_was(key: str) -> None:
    assert ConvProblem.from_find_db_key(key).find_db_key() == key


@given(problems())
def test_every_problem_survives_its_key(problem: ConvProblem) -> None:
    again = ConvProblem.from_find_db_key(problem.find_db_key())
    assert again.find_db_key() == problem.find_db_key()
    assert again.perf_db_key() == problem.perf_db_key()
    if not problem.transposed:
        assert again == problem


def test_a_backward_key_begins_with_the_gradient() -> None:
    problem = ConvProblem.from_find_db_key(KEYS[1])
    assert (problem.in_channels, problem.in_spatial, problem.out_channels, problem.out_spatial) == (
        3,
        (224, 224),
        64,
        (112, 112),
    )
    assert (problem.direction, problem.x_dims, problem.w_dims) == ("B", (16, 3, 224, 224), (64, 3, 7, 7))


def test_mixed_dtypes_swap_their_roles_too() -> None:
    problem = ConvProblem.from_find_db_key(KEYS[4])
    assert problem.dtypes == ("INT8", "INT8", "INT32")


@pytest.mark.parametrize(
    ("direction", "key"),
    [
        ("F", "64-28-28-4x4-32-56-56-16-1x1-2x2-1x1-0-NCHW-FP32-B"),
        ("B", "32-56-56-4x4-64-28-28-16-1x1-2x2-1x1-0-NCHW-FP32-F"),
        ("W", "64-28-28-4x4-32-56-56-16-1x1-2x2-1x1-0-NCHW-FP32-W"),
    ],
)
def test_a_transposed_convolution_is_the_backward_pass_of_its_twin(direction, key: str) -> None:
    problem = ConvProblem.from_dims(
        (16, 64, 28, 28),
        (64, 32, 4, 4),
        pad=(1, 1),
        stride=(2, 2),
        dilation=(1, 1),
        transposed=True,
        direction=direction,
    )
    assert problem.find_db_key() == key
    assert problem.y_dims == (16, 32, 56, 56)


def test_output_padding_of_a_transposed_convolution_is_in_the_key() -> None:
    problem = ConvProblem.from_dims(
        (1, 8, 10, 10),
        (8, 2, 3, 3),
        pad=(1, 1),
        stride=(2, 2),
        dilation=(1, 1),
        groups=2,
        transposed=True,
        output_pad=(1, 0),
    )
    assert problem.find_db_key() == "8-10-10-3x3-4-20-19-1-1x1-2x2-1x1-0-NCHW-FP32-B_g2"
    assert problem.output_pad == (1, 0)
    assert problem.w_dims == (8, 2, 3, 3)


def test_a_one_by_one_filter_has_every_layout() -> None:
    problem = ConvProblem.from_dims(
        (8, 64, 14, 14),
        (128, 64, 1, 1),
        pad=(0, 0),
        stride=(1, 1),
        dilation=(1, 1),
        layouts=("NHWC", "NCHW", "NHWC"),
    )
    assert problem.layouts == ("NHWC", "NHWC", "NHWC")


def test_strides_decide_over_names() -> None:
    plain = ((3136 * 64, 3136, 56, 1), (576, 9, 3, 1), (3136 * 64, 3136, 56, 1))
    problem = ConvProblem.from_dims(
        (1, 64, 56, 56), (64, 64, 3, 3), pad=(1, 1), stride=(1, 1), dilation=(1, 1), layouts="NHWC", strides=plain
    )
    assert problem.layouts == ("NCHW", "NCHW", "NCHW")


def test_the_perf_db_key_is_as_miopen_wrote_it() -> None:
    problem = ConvProblem.from_find_db_key("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F")
    assert problem.perf_db_key() == "2x64x56x56x1x3x3x1x64x16x1x1x0x1x1x0x1x1x0x0x1xNCHWxFP32xF"


def test_multiply_adds_are_the_same_in_every_direction() -> None:
    sizes = {ConvProblem.from_find_db_key(key).multiply_adds for key in KEYS[:2]}
    assert sizes == {16 * 112 * 112 * 64 * 3 * 49}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": (0, 1)}, "at least 1"),
        ({"pad": (1,)}, "need 2 numbers"),
        ({"in_spatial": (8,)}, "2 or 3 spatial dims"),
        ({"groups": 5}, "5 groups do not divide"),
    ],
)
def test_impossible_problems_are_refused(changes, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        replace(ConvProblem.from_find_db_key(KEYS[0]), **changes)


def test_channels_that_do_not_fit_the_filter_are_refused() -> None:
    with pytest.raises(ProblemError, match="has 4 channels"):
        ConvProblem.from_dims((1, 4, 8, 8), (4, 3, 3, 3), pad=(1, 1), stride=(1, 1), dilation=(1, 1))


def test_the_real_rows_agree(shipped: Path) -> None:
    rows = [line.split("\t") for line in (shipped / "keys.tsv").read_text().splitlines()[1:]]
    keys = [row[3] for row in rows if row[3]]
    assert len(keys) > 100
    assert [ConvProblem.from_find_db_key(key).find_db_key() for key in keys] == keys


def test_the_real_perf_db_has_the_keys_that_the_find_db_predicts(shipped: Path) -> None:
    tuned = PerfDb.read(shipped / "gfx942130.db.bz2")
    lines = bz2.decompress((shipped / "gfx942130.HIP.fdb.txt.bz2").read_bytes()).decode().splitlines()
    keys = [line.partition("=")[0] for line in lines]
    predicted = {ConvProblem.from_find_db_key(key).perf_db_key() for key in keys}
    # NHWC rows aside, every tuned problem was also found; that is what shows the order of the columns to be right.
    missing = [key for key in tuned if key not in predicted]
    assert len(missing) <= len(tuned) // 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gfx906_60", "gfx90a68", "gfx942130"])
def test_every_shipped_key_comes_back_byte_for_byte(shipped: Path, name: str) -> None:
    count = 0
    with bz2.open(shipped / f"{name}.HIP.fdb.txt.bz2", "rt") as lines:
        for line in lines:
            key = line.partition("=")[0]
            assert ConvProblem.from_find_db_key(key).find_db_key() == key
            count += 1
    assert count > 9000
