"""Requests whose rows an engine takes as they lie, without one array made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from handlers.engines.engine import joined
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.job import Job
from serving.lanes.stacking import parts
from serving.lanes.warmset import Outcome

FOUR = Shape.parse("x=4x8:fp32")


def job(rows: int, width: int = 8) -> Job:
    array = np.full((rows, width), rows, np.float32)
    return Job({"x": array}, (array.shape,), ((width,),), rows, Outcome.WARM)


@pytest.mark.parametrize(("rows", "padding"), [((1, 3), [0, 0]), ((1, 2), [2, 5]), ((2,), [16])])
def test_rows_stay_where_they_are_and_what_is_missing_is_counted(
    spec: ModelSpec, rows: tuple[int, ...], padding: list[int]
) -> None:
    jobs = [job(count) for count in rows]
    found = parts(spec, FOUR, jobs)
    assert found is not None and all(mine is one.inputs for mine, one in zip(found, jobs, strict=True))
    assert [one.padding for one in jobs] == padding


@pytest.mark.parametrize("jobs", [[job(4)], [job(1), job(1, width=6)]])
def test_a_whole_request_and_one_that_is_padded_otherwise_are_not_taken_apart(spec: ModelSpec, jobs: Any) -> None:
    assert parts(spec, FOUR, jobs) is None


def test_an_engine_that_takes_no_parts_gets_one_array() -> None:
    inputs = joined([job(1).inputs, job(2).inputs], FOUR, {"x": 9})
    assert inputs["x"].shape == (4, 8) and inputs["x"][:, 0].tolist() == [1, 2, 2, 9]
    assert inputs["x"].dtype == np.float32
