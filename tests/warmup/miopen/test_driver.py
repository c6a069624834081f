from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.miopen.driver import driver_line, from_driver_line, is_driver_line
from warmup.miopen.keys import ProblemError, parse_dtypes
from warmup.miopen.problem import DIRECTIONS, ConvProblem

LOGGED = (
    "./bin/MIOpenDriver conv -n 8 -c 16 -H 17 -W 33 -k 24 -y 5 -x 3 -p 2 -q 0 -u 3 -v 1 -l 1 -j 2 "
    "-m conv -g 1 -F 2 -t 1",
    "24-6-29-5x3-16-17-33-8-2x0-3x1-1x2-0-NCHW-FP32-B",
)
# Direction, what MIOpen 3.4.0 logged, and the key that it wrote.
ROWS = (
    LOGGED,
    (
        "./bin/MIOpenDriver convfp16 -n 2 -c 16 --in_d 8 -H 28 -W 30 -k 32 --fil_d 3 -y 3 -x 3 --pad_d 1 -p 1 -q 1 "
        "--conv_stride_d 1 -u 1 -v 1 --dilation_d 1 -l 1 -j 1 --spatial_dim 3 -m conv -g 2 -F 4 -t 1",
        "32-8-28-30-3x3x3-16-8-28-30-2-1x1x1-1x1x1-1x1x1-0-NCDHW-FP16-W_g2",
    ),
    (
        "./bin/MIOpenDriver conv -n 16 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -l 1 -j 1 "
        "--in_layout NHWC --out_layout NHWC -m conv -g 1 -F 1 -t 1",
        "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NHWC-NCHW-NHWC-FP32-F",
    ),
    (
        "./bin/MIOpenDriver conv -n 16 -c 64 -H 28 -W 28 -k 32 -y 4 -x 4 -p 1 -q 1 -u 2 -v 2 -l 1 -j 1 "
        "-m trans -g 1 -F 1 -t 1",
        "64-28-28-4x4-32-56-56-16-1x1-2x2-1x1-0-NCHW-FP32-B",
    ),
    (
        "./bin/MIOpenDriver convbfp16 -n 16 -c 32 -H 28 -W 28 -k 32 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -l 1 -j 1 "
        "--in_layout NHWC --fil_layout NHWC --out_layout NHWC -m conv -g 32 -F 2 -t 1",
        "32-28-28-3x3-32-28-28-16-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-BF16-B_g32",
    ),
)


def _key(line: str, dtypes: str = "") -> str:
    (problem,) = from_driver_line(line, parse_dtypes(dtypes) if dtypes else None).problems
    return problem.find_db_key()


@pytest.mark.parametrize(("line", "key"), ROWS)
def test_a_logged_line_gives_the_key_that_was_written(line: str, key: str) -> None:
    (problem,) = from_driver_line(line).problems
    assert problem.find_db_key() == key
    assert driver_line(problem) == line


def test_a_whole_line_of_a_log_is_understood() -> None:
    assert _key(f"MIOpen(HIP): Command [LogCmdFindConvolution] {LOGGED[0]}") == LOGGED[1]


def test_long_flags_in_any_order_say_the_same() -> None:
    line = (
        "MIOpenDriver conv --forw 2 --dilation_w 2 --pad_h 2 --fil_w 3 --fil_h 5 --out_channels 24 --in_w 33 --in_h 17 "
        "--in_channels 16 --batchsize 8 --conv_stride_h 3 --iter 1 -V 0 --search 1"
    )
    assert _key(line) == LOGGED[1]


@pytest.mark.parametrize(("flag", "directions"), [("0", "FBW"), ("1", "F"), ("3", "FB"), ("6", "BW"), ("7", "FBW")])
def test_the_directions_are_a_bitmask(flag: str, directions: str) -> None:
    problems = from_driver_line(f"conv -c 8 -k 8 -F {flag}").problems
    assert "".join(problem.direction for problem in problems) == directions


def test_what_a_line_leaves_out_has_the_drivers_default() -> None:
    assert _key("conv -F 1") == "3-32-32-3x3-32-30-30-100-0x0-1x1-1x1-0-NCHW-FP32-F"


def test_plain_conv_is_ambiguous_and_taken_as_told() -> None:
    line = "conv -n 2 -c 8 -H 14 -W 14 -k 8 -p 1 -q 1 -F 1"
    assert "FP8, BF8 and FP64" in from_driver_line(line).ambiguous[0]
    assert from_driver_line(line, parse_dtypes("FP64")).ambiguous == ()
    assert _key(line, "FP64").endswith("NCHW-FP64-F")
    assert _key(line, "FP8FP8FP32").endswith("NCHW-FP8FP8FP32-F")


def test_int8_does_not_say_its_output() -> None:
    line = "convint8 -n 2 -c 8 -H 14 -W 14 -k 8 -p 1 -q 1 -F 2"
    assert "output's dtype" in from_driver_line(line).ambiguous[0]
    assert _key(line).endswith("NCHW-INT32INT8INT8-B")
    assert _key(line, "INT8").endswith("NCHW-INT8-B")


def test_a_dtype_that_the_line_says_is_kept() -> None:
    assert _key("convfp16 -F 1", "FP64").endswith("FP16-F")
    assert from_driver_line("convfp16 -F 1").ambiguous == ()


def test_in_a_log_k_of_a_transposed_convolution_counts_one_group() -> None:
    (problem,) = from_driver_line("conv -n 1 -c 8 -H 10 -W 10 -k 3 -y 2 -x 2 -u 2 -v 2 -m trans -g 4 -F 1").problems
    assert problem.out_channels == 12
    assert problem.w_dims == (8, 3, 2, 2)


def test_output_padding_and_casts_are_said_with_the_drivers_flags() -> None:
    (problem,) = from_driver_line("convfp8 -c 8 -k 8 -H 9 -W 9 -u 2 -v 2 -Y 1 -m trans -F 1 -U fp8 -T bf8").problems
    assert problem.output_pad == (1, 0)
    assert problem.casts == ("FP8", None, "BF8")
    assert from_driver_line(driver_line(problem)).problems == (problem,)
    assert "-Y" not in driver_line(problem, as_logged=True)
    assert driver_line(problem, as_logged=True).split()[1] == "conv"


@pytest.mark.parametrize(("mode", "pad"), [("same", "1x1"), ("valid", "0x0"), ("default", "2x2")])
def test_pad_modes_are_those_of_the_driver(mode: str, pad: str) -> None:
    assert f"-{pad}-" in _key(f"conv -c 8 -H 16 -W 16 -k 8 -p 2 -q 2 -z {mode} -F 1")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bnorm -n 1", "'bnorm' is not a convolution"),
        ("conv -n 1 --bogus 3", "unknown flag '--bogus'"),
        ("conv -n 1 -? 3", "unknown flag '-[?]'"),
        ("conv n 1", "unknown flag 'n'"),
        ("conv -n", "'-n' has no value"),
        ("conv -n x", "--batchsize .-n. is 'x'"),
        ("conv -n 0", "whole numbers from 1"),
        ("conv -n \u0666", "whole numbers from 1"),
        (f"conv -n {'9' * 9999}", "whole numbers from 1"),
        ("conv -F 8", "-F 8; allowed"),
        ("conv -m sideways", "allowed: conv or trans"),
        ("conv --spatial_dim 4", "allowed: 2 or 3"),
        ("conv -c 8 -k 8 -g 3", "-g 3 does not divide"),
        ("conv --in_layout NHCW2 -F 1", "layout 'NHCW2'"),
        ("conv -Z 1", "vectorised"),
        ("conv -z round", "allowed: default, same, valid"),
        ("conv -U fp12", "allowed: fp32"),
        ("MIOpenDriver", "no command"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(line: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        from_driver_line(line)


def test_what_the_driver_has_no_words_for_is_refused() -> None:
    problem = ConvProblem.from_find_db_key(LOGGED[1])
    with pytest.raises(ProblemError, match="cannot say dtypes FP64"):
        driver_line(replace(problem, dtypes=("FP64",) * 3))
    with pytest.raises(ProblemError, match="cannot say an output"):
        driver_line(replace(problem, out_spatial=(7, 7)))


@pytest.mark.parametrize(
    ("text", "is_line"), [(LOGGED[0], True), ("conv -n 1", True), (LOGGED[1], False), ("conv", False)]
)
def test_a_line_is_told_from_a_key(text: str, is_line: bool) -> None:
    assert is_driver_line(text) == is_line


@given(
    st.tuples(*[st.integers(1, 64)] * 4),
    st.tuples(*[st.integers(1, 4)] * 6),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from(DIRECTIONS),
    st.booleans(),
    st.sampled_from(("FP32", "FP16", "BF16", "FP8")),
    st.sampled_from(("NCHW", "NHWC")),
)
def test_every_problem_of_one_layout_survives_its_line(
    sizes, steps, pad, groups, direction, transposed, dtype, layout
) -> None:
    batch, channels, height, width = sizes
    x, w = (batch, 4 * channels, height + 16, width + 16), (4 * channels, 8 // groups, *steps[:2])
    if not transposed:
        w = (8, 4 * channels // groups, *steps[:2])
    problem = ConvProblem.from_dims(
        x,
        w,
        pad=pad,
        stride=steps[2:4],
        dilation=steps[4:],
        groups=groups,
        transposed=transposed,
        direction=direction,
        dtypes=dtype,
        layouts=layout,
    )
    assert from_driver_line(driver_line(problem)).problems == (problem,)


def test_the_real_rows_agree(shipped: Path) -> None:
    """Every row that MIOpen wrote a key for; FP8 and FP64 lines say plain conv, so these dtypes are told."""
    told = {"fp8": "FP8", "double": "FP64"}
    without_key = []
    for row in (shipped / "keys.tsv").read_text().splitlines()[1:]:
        _, name, _, key, line, _ = row.split("\t")
        (problem,) = from_driver_line(line, parse_dtypes(told[name]) if name in told else None).problems
        assert driver_line(problem, as_logged=True) == line
        if key:
            assert problem.find_db_key() == key
        else:
            without_key.append(name)
    assert without_key == ["int8"]  # backward weights, which MIOpen refuses with status 3
