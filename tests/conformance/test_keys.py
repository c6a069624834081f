"""The keys that Preheat predicts are the keys that the real library writes."""

from __future__ import annotations

import itertools

import pytest

from warmup.miopen.layouts import CHANNELS_LAST, packed_strides
from warmup.miopen.problem import DIRECTIONS, ConvProblem

pytestmark = pytest.mark.miopen
DTYPES = ("FP32", "FP16", "BF16")
# x dims, w dims, and the numbers of the convolution, by what is special about it.
CALLS = {
    "plain": ((4, 16, 28, 30), (32, 16, 3, 3), {"pad": (1, 1), "stride": (1, 1), "dilation": (1, 1)}),
    "stem": ((2, 3, 64, 64), (64, 3, 7, 7), {"pad": (3, 3), "stride": (2, 2), "dilation": (1, 1)}),
    "pointwise": ((2, 64, 14, 14), (32, 64, 1, 1), {"pad": (0, 0), "stride": (1, 1), "dilation": (1, 1)}),
    "uneven": ((3, 16, 17, 33), (24, 16, 5, 3), {"pad": (2, 0), "stride": (3, 1), "dilation": (1, 2)}),
    "dilated": ((2, 16, 28, 28), (16, 16, 3, 3), {"pad": (2, 2), "stride": (1, 1), "dilation": (2, 2)}),
    "grouped": ((2, 32, 14, 14), (64, 8, 3, 3), {"pad": (1, 1), "stride": (1, 1), "dilation": (1, 1), "groups": 4}),
    "depthwise": ((2, 32, 14, 14), (32, 1, 3, 3), {"pad": (1, 1), "stride": (2, 2), "dilation": (1, 1), "groups": 32}),
    "3-D": ((2, 8, 6, 14, 16), (16, 8, 3, 5, 3), {"pad": (1, 2, 1), "stride": (1, 2, 1), "dilation": (1, 1, 1)}),
    "3-D grouped": (
        (2, 8, 6, 14, 14),
        (16, 4, 3, 3, 3),
        {"pad": (1, 1, 1), "stride": (1, 1, 1), "dilation": (1, 1, 1), "groups": 2},
    ),
}
TRANSPOSED = {
    "upsampling": ((2, 64, 14, 14), (64, 32, 4, 4), {"pad": (1, 1), "stride": (2, 2), "dilation": (1, 1)}),
    "with output padding": (
        (2, 16, 14, 15),
        (16, 32, 3, 3),
        {"pad": (1, 1), "stride": (2, 2), "dilation": (1, 1), "output_pad": (1, 1)},
    ),
    "grouped": ((2, 16, 14, 14), (16, 4, 2, 2), {"pad": (0, 0), "stride": (2, 2), "dilation": (1, 1), "groups": 4}),
    "3-D": ((2, 16, 4, 7, 7), (16, 8, 2, 2, 2), {"pad": (0, 0, 0), "stride": (2, 2, 2), "dilation": (1, 1, 1)}),
}


def _check(standin, home, problems: list[ConvProblem], **more) -> None:
    # Without the rule, dilated convolutions that are given the workspace that MIOpen asks for are never recorded.
    rule = {"MIOPEN_FIND_CONV_INSUFFICIENT_WORKSPACE_ALLOW_FINDDB_UPDATE": "1"}
    answers = standin.find(home, problems, **rule, **more)
    refused = [(p.find_db_key(), a["error"]) for p, a in zip(problems, answers, strict=True) if "error" in a]
    assert not refused
    assert home.keys() == {problem.find_db_key() for problem in problems}


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_plain_convolutions_in_every_dtype_and_direction(standin, make_home, last):
    home = make_home("MI300X", arch="gfx942:sramecc+:xnack-", cu=304)
    problems = [
        ConvProblem.from_dims(
            x, w, **numbers, direction=direction, dtypes=dtype, layouts=CHANNELS_LAST[len(x) - 2] if last else None
        )
        for (x, w, numbers), dtype, direction in itertools.product(CALLS.values(), DTYPES, DIRECTIONS)
    ]
    _check(standin, home, problems)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_transposed_convolutions_swap_their_direction(standin, make_home, last):
    home = make_home("MI300X", arch="gfx942:sramecc+:xnack-", cu=304)
    problems = [
        ConvProblem.from_dims(
            x,
            w,
            **numbers,
            transposed=True,
            direction=direction,
            dtypes=dtype,
            layouts=CHANNELS_LAST[len(x) - 2] if last else None,
        )
        for (x, w, numbers), dtype, direction in itertools.product(TRANSPOSED.values(), DTYPES, DIRECTIONS[:2])
    ]
    _check(standin, home, problems)


def test_int8_forward_names_three_dtypes(standin, make_home):
    home = make_home("MI300X", arch="gfx942:sramecc+:xnack-", cu=304)
    x, w, numbers = CALLS["plain"]
    problems = [
        ConvProblem.from_dims(x, w, **numbers, dtypes=("INT8", "INT8", "INT32")),
        ConvProblem.from_dims(x, w, **numbers, dtypes=("INT8", "INT8", "INT8")),
    ]
    assert problems[0].find_db_key().endswith("-NCHW-INT8INT8INT32-F")
    _check(standin, home, problems)


@pytest.mark.parametrize(
    ("x", "w", "called"),
    [
        ((4, 1, 28, 28), (8, 1, 3, 3), "one channel in"),
        ((4, 16, 1, 1), (8, 16, 1, 1), "one pixel"),
        ((4, 8, 28, 28), (1, 8, 3, 3), "one channel out"),
        ((1, 8, 28, 28), (16, 8, 1, 1), "a batch of one, a filter of one pixel"),
        ((4, 1, 28, 28), (1, 1, 3, 3), "one channel throughout"),
        ((4, 8, 28, 1), (16, 8, 3, 1), "width one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
def test_degenerate_tensors_get_the_layout_that_miopen_sees_in_their_strides(standin, home, x, w, called, last):
    label = "NHWC" if last else "NCHW"
    pad = (w[2] // 2, w[3] // 2)
    y = (x[0], w[0], *x[2:])
    strides = (packed_strides(x, label), packed_strides(w, label), packed_strides(y, label))
    problem = ConvProblem.from_dims(x, w, pad=pad, stride=(1, 1), dilation=(1, 1), layouts=label, strides=strides)
    _check(standin, home, [problem], strides=[strides])


def test_padded_rows_share_the_key_of_packed_ones(standin, home):
    x, w, numbers = CALLS["plain"]
    problem = ConvProblem.from_dims(x, w, **numbers)
    rows = 64
    strides = ((16 * 28 * rows, 28 * rows, rows, 1), *(packed_strides(d, "NCHW") for d in (w, problem.y_dims)))
    _check(standin, home, [problem, problem], strides=[strides, None])
