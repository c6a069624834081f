"""The driver lines that the real library logs are those that Preheat writes, and give the keys that it stores."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from warmup.miopen.driver import driver_line, from_driver_line
from warmup.miopen.keys import parse_dtypes
from warmup.miopen.problem import ConvProblem

pytestmark = pytest.mark.miopen
LOGGED = re.compile(r"\[LogCmdFindConvolution\] (.*MIOpenDriver .*)")
PLAIN = {
    "grouped": ((2, 32, 14, 14), (64, 8, 3, 3), {"pad": (1, 1), "stride": (1, 2), "dilation": (2, 1), "groups": 4}),
    "3-D": ((2, 8, 6, 14, 16), (16, 8, 3, 5, 3), {"pad": (1, 2, 1), "stride": (1, 2, 1), "dilation": (1, 1, 1)}),
}
TRANSPOSED = {
    "upsampling": ((2, 64, 14, 14), (64, 32, 4, 4), {"pad": (1, 1), "stride": (2, 2), "dilation": (1, 1)}),
    "grouped": ((2, 16, 14, 14), (16, 4, 2, 2), {"pad": (0, 0), "stride": (2, 2), "dilation": (1, 1), "groups": 4}),
}


def _problems() -> list[ConvProblem]:
    calls = [(x, w, numbers, False) for x, w, numbers in PLAIN.values()]
    calls += [(x, w, numbers, True) for x, w, numbers in TRANSPOSED.values()]
    return [
        ConvProblem.from_dims(x, w, **numbers, transposed=transposed, direction=direction, dtypes=dtype, layouts=layout)
        for (x, w, numbers, transposed), direction, (dtype, layout) in itertools.product(
            calls, ("F", "B"), (("FP32", None), ("BF16", None), ("FP16", "last"))
        )
        for layout in [("NHWC" if len(x) == 4 else "NDHWC") if layout else None]
    ]


def test_logged_lines_are_written_and_read_exactly(standin, home) -> None:
    problems = _problems()
    calls = json.dumps({"problems": [asdict(problem) for problem in problems], "strides": None})
    drive = Path(__file__).with_name("drive.py")
    done = standin.run(home, str(drive), input=calls, MIOPEN_ENABLE_LOGGING_CMD="1")
    assert done.returncode == 0, done.stderr
    lines = list(dict.fromkeys(LOGGED.findall(done.stderr)))
    assert lines == [driver_line(problem, as_logged=True) for problem in problems]
    for line, problem in zip(lines, problems, strict=True):
        assert from_driver_line(line).problems == (problem,)


def test_fp8_is_logged_as_plain_conv(standin, home) -> None:
    problem = ConvProblem.from_dims(
        (2, 16, 14, 14), (16, 16, 3, 3), pad=(1, 1), stride=(1, 1), dilation=(1, 1), dtypes="FP8"
    )
    calls = json.dumps({"problems": [asdict(problem)], "strides": None})
    done = standin.run(home, str(Path(__file__).with_name("drive.py")), input=calls, MIOPEN_ENABLE_LOGGING_CMD="1")
    (line,) = dict.fromkeys(LOGGED.findall(done.stderr))
    assert line == driver_line(problem, as_logged=True)
    assert from_driver_line(line, parse_dtypes("FP8")).problems == (problem,)
    assert from_driver_line(line).ambiguous
