from __future__ import annotations

import pytest

from warmup.miopen.keys import ProblemError
from warmup.miopen.problem_list import read_problems

DRIVER = (
    "MIOpen(HIP): Command [LogCmdFindConvolution] ./bin/MIOpenDriver convfp16 -n 2 -c 8 -H 14 -W 14 -k 16 -y 3 -x 3 "
    "-p 1 -q 1 -u 1 -v 1 -l 1 -j 1 -m conv -g 1 -F 1 -t 1"
)
KEY = "8-14-14-3x3-16-14-14-2-1x1-1x1-1x1-0-NCHW-FP16-F"


def test_log_lines_keys_and_records_in_any_mixture_each_problem_once():
    other = KEY.replace("-2-", "-4-", 1)
    found = read_problems(
        [DRIVER, "", "# a comment", KEY + "\n", f"{other}=GemmFwdRest:1.5,0,miopenConvolutionFwdAlgoGEMM"]
    )
    assert [problem.find_db_key() for problem in found.problems] == [KEY, other]
    assert found.ambiguous == ()


def test_every_direction_of_a_driver_line_is_a_problem():
    found = read_problems([DRIVER.replace("-F 1", "-F 0")])
    assert [problem.direction for problem in found.problems] == ["F", "B", "W"]


def test_what_a_line_leaves_open_is_told_once():
    lines = [DRIVER.replace("convfp16", "conv"), DRIVER.replace("convfp16", "conv").replace("-n 2", "-n 3")]
    assert len(read_problems(lines).ambiguous) == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([KEY, "8-14-14-3x3-16"], "line 2: key '8-14-14-3x3-16' is cut short"),
        (["./bin/MIOpenDriver conv --no_such 1"], "line 1: unknown flag '--no_such'"),
        (["./bin/MIOpenDriver pool -n 1"], "line 1: 'pool' is not a convolution"),
        (["", "# nothing"], "no problem in it; expected driver lines or find-db keys"),
    ],
)
def test_a_line_that_is_no_problem_is_named_by_its_number(lines, told):
    with pytest.raises(ProblemError) as error:
        read_problems(lines)
    assert str(error.value).startswith(told)
