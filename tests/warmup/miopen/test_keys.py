from __future__ import annotations

import re

import pytest

from warmup.miopen.keys import KEY_SHAPE, ProblemError, parse_dtypes, parse_key
from warmup.miopen.problem import ConvProblem

KEY = "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "in channels is ''"),
        ("\u0666\u0664-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F", "in channels is"),
        ("hello", "in channels is 'hello'"),
        (f"{'9' * 9999}-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F", "in channels is '9999"),
        ("64", "cut short: no in spatial"),
        ("64-56-56-3x3-64-5", "cut short: no out spatial"),
        ("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW", "cut short: no dtype"),
        ("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP17-F", "dtype is 'FP17'"),
        ("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-X", "direction is 'X'"),
        ("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F-9", "goes on after its direction"),
        ("64-56-56-3x3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F", "filter is '3x3x3'"),
        ("64-56-56-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F", "4 spatial dims"),
        ("064-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F", "in channels is '064'"),
        (KEY + "_g1", "two layouts, or one group"),
        ("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NHWC-FP16-F", "written three times"),
        ("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-NCHW-NCHW-FP16-F", "stand alone"),
        ("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16FP16FP16-F", "written as one"),
        (KEY + "_g7", "7 groups do not divide"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(text: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        ConvProblem.from_find_db_key(text)


def test_a_key_is_taken_apart_in_its_order() -> None:
    fields = parse_key("16-8-28-30-3x5x3-32-8-14-30-2-1x2x1-1x2x1-1x1x1-0-NDHWC-NCDHW-NDHWC-INT8INT8INT32-F_g4_cwFP8")
    assert (fields.in_channels, fields.in_spatial, fields.filter) == (16, (8, 28, 30), (3, 5, 3))
    assert (fields.out_channels, fields.out_spatial, fields.batch) == (32, (8, 14, 30), 2)
    assert (fields.pad, fields.stride, fields.dilation, fields.bias) == ((1, 2, 1), (1, 2, 1), (1, 1, 1), 0)
    assert fields.layouts == ("NDHWC", "NCDHW", "NDHWC")
    assert fields.dtypes == ("INT8", "INT8", "INT32")
    assert (fields.direction, fields.groups, fields.casts) == ("F", 4, (None, "FP8", None))


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [("FP16", ("FP16",) * 3), ("int8int8int32", ("INT8", "INT8", "INT32")), ("FP8FP8FP16", ("FP8", "FP8", "FP16"))],
)
def test_dtypes_are_one_or_three(text: str, dtypes) -> None:
    assert parse_dtypes(text) == dtypes


@pytest.mark.parametrize("text", ["", "FP16FP16", "half", "INT8INT8INT7"])
def test_other_dtypes_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="allowed are FP32"):
        parse_dtypes(text)


def test_the_shape_of_a_key_allows_options_of_later_versions() -> None:
    assert re.fullmatch(KEY_SHAPE, KEY + "_g32_ciFP8_newX3")
    assert not re.fullmatch(KEY_SHAPE, KEY[3:])
