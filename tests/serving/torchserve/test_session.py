"""Batches in a TorchServe worker: planned sizes, padding, policies for what is cold, and errors of one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from handlers.errors import UnplannedShape
from handlers.handler import Tensors
from serving.lanes.job import ExecutionFailed
from serving.torchserve.session import NotWarm, Ran, Session


def _x(*values: float, rows: int = 1) -> Tensors:
    return {"x": np.tile(np.array(values, np.float32), (rows, 1))}


def _y(ran: Ran) -> list[list[float]]:
    assert isinstance(ran.result, dict)
    return ran.result["y"].tolist()


def _rows(session: Session) -> list[int]:
    return [execution.rows for execution in session.executions]


def test_requests_of_a_group_run_together(make_session: Callable[..., Session]) -> None:
    session = make_session()
    ran = session.run([_x(value, 0, 0, 0) for value in (1, 2, 3, 4)])
    assert [_y(one)[0][0] for one in ran] == [2, 4, 6, 8]
    assert _rows(session) == [4]
    assert {one.outcome.value for one in ran} == {"warm"}


def test_three_rows_run_as_a_padded_four(make_session: Callable[..., Session]) -> None:
    session = make_session()
    assert [_y(one)[0][0] for one in session.run([_x(value, 0, 0, 0) for value in (1, 2, 3)])] == [2, 4, 6]
    assert _rows(session) == [3]


def test_more_than_the_largest_size_is_run_in_parts(make_session: Callable[..., Session]) -> None:
    session = make_session()
    ran = session.run([_x(value, 0, 0, 0) for value in range(6)])
    assert [_y(one)[0][0] for one in ran] == [0, 2, 4, 6, 8, 10]
    assert _rows(session) == [4, 2]


def test_a_request_may_have_rows_of_its_own(make_session: Callable[..., Session]) -> None:
    session = make_session()
    first, second = session.run([_x(1, 1, 1, 1, rows=2), _x(2, 2, 2, 2)])
    assert (_y(first), _y(second)) == ([[2] * 4] * 2, [[4] * 4])
    assert _rows(session) == [3]


def test_groups_run_apart_and_answers_keep_their_order(make_session: Callable[..., Session]) -> None:
    session = make_session()
    ran = session.run([_x(1, 1, 1, 1), _x(*[2] * 8), _x(3, 3, 3)])
    assert [_y(one) for one in ran] == [[[2] * 4], [[4] * 8], [[6] * 3]]
    assert [one.outcome.value for one in ran] == ["warm", "warm", "padded"]


def test_a_request_that_makes_the_model_fail_fails_alone(make_session: Callable[..., Session]) -> None:
    session = make_session()
    good, bad, other = session.run([_x(1, 0, 0, 0), _x(13, 0, 0, 0), _x(2, 0, 0, 0)])
    assert (_y(good)[0][0], _y(other)[0][0]) == (2, 4)
    assert isinstance(bad.result, ExecutionFailed)
    assert "thirteen" not in str(bad.result)


@pytest.mark.parametrize("cold", ["pad", "reject"])
def test_what_no_warm_shape_holds_is_refused_beside_the_others(make_session: Callable[..., Session], cold: str) -> None:
    refused, answered = make_session(cold).run([_x(*[0] * 9), _x(1, 2, 3, 4)])
    assert isinstance(refused.result, UnplannedShape)
    assert refused.result.nearest[0] == "x=1x8:fp32"
    assert _y(answered) == [[2, 4, 6, 8]]


def test_what_is_cold_may_run_and_its_first_call_is_counted_once(make_session: Callable[..., Session]) -> None:
    session = make_session("run")
    (first,) = session.run([_x(*[1] * 9)])
    (second,) = session.run([_x(*[1] * 9)])
    assert _y(first) == _y(second) == [[2] * 9]
    assert first.outcome.value == "cold"
    assert first.first_call > 0
    assert second.first_call == 0


def test_without_a_proof_everything_runs_cold(make_session: Callable[..., Session]) -> None:
    session = make_session("pad", proven=None)
    (ran,) = session.run([_x(1, 2, 3, 4)])
    assert (_y(ran), ran.outcome.value) == ([[2, 4, 6, 8]], "cold")
    assert session.coverage == 0


def test_a_cold_request_that_fails_fails_alone(make_session: Callable[..., Session]) -> None:
    bad, good = make_session("run").run([_x(13, *[0] * 8), _x(*[1] * 9)])
    assert isinstance(bad.result, ExecutionFailed)
    assert _y(good) == [[2] * 9]


def test_too_little_that_is_warm_is_no_start(make_session: Callable[..., Session]) -> None:
    with pytest.raises(NotWarm, match=r"0\.250 of the traffic is warm, ready_coverage is 0\.500"):
        make_session(proven=("x=1x4:fp32",), coverage=0.5)


def test_no_requests_are_no_runs(make_session: Callable[..., Session]) -> None:
    session = make_session()
    nothing: Sequence[Tensors] = []
    assert session.run(nothing) == []
    assert session.executions == []
