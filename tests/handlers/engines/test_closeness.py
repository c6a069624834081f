from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from handlers.engines.closeness import difference, distance, telling  # noqa: E402
from handlers.engines.staging import arranged, as_array  # noqa: E402

INF, NAN = float("inf"), float("nan")


def test_distance_is_relative_to_the_largest_value() -> None:
    assert distance(torch.tensor([1.0, -200.0]), torch.tensor([3.0, -200.0])) == pytest.approx(0.01)
    assert distance(torch.zeros(2), torch.zeros(2)) == 0
    assert distance(torch.zeros(2), torch.tensor([0.0, 1e-9])) == INF


@pytest.mark.parametrize(
    ("found", "equal"),
    [([1.0, NAN], True), ([NAN, 1.0], False), ([1.0, INF], False), ([1.0, 1.0], False)],
)
def test_nan_must_be_where_it_was(found: list[float], equal: bool) -> None:
    assert (distance(torch.tensor([1.0, NAN]), torch.tensor(found)) == 0) is equal


def test_infinities_of_another_sign_differ() -> None:
    assert distance(torch.tensor([INF, 1.0]), torch.tensor([-INF, 1.0])) == INF
    assert distance(torch.tensor([INF, 1.0]), torch.tensor([INF, 1.0])) == 0


def test_whole_numbers_must_be_equal() -> None:
    assert distance(torch.tensor([1, 2]), torch.tensor([1, 2])) == 0
    assert distance(torch.tensor([1, 2]), torch.tensor([1, 3])) == INF


@pytest.mark.parametrize(("precision", "gap", "close"), [("float16", 9e-4, True), ("float32", 9e-4, False)])
def test_the_tolerance_is_that_of_the_precision(precision: str, gap: float, close: bool) -> None:
    told = difference([torch.ones(3)], [torch.ones(3) + gap], getattr(torch, precision))
    assert (told == "") is close
    assert close or "output 0 differs" in told


def test_another_number_of_outputs_is_a_difference() -> None:
    assert difference([torch.ones(1)], [], torch.float32) == "0 outputs instead of 1"


def test_staged_tensors_are_aligned_and_do_not_overlap() -> None:
    places, size = arranged((((3,), torch.float32), ((5, 7), torch.float16), ((), torch.int64)))
    assert places == [(0, 12), (512, 582), (1024, 1032)] and size == 1536


def test_bf16_is_seen_as_words() -> None:
    assert as_array(torch.tensor([1.0], dtype=torch.bfloat16)).tolist() == [0x3F80]


@pytest.mark.parametrize(
    ("outputs", "tells"),
    [
        ([[0.0, 0.0]], False),
        ([[NAN, NAN]], False),
        ([[0.0, 1e-30]], True),
        ([[NAN, 0.0]], True),
        ([[2, 2]], False),
        ([[True, False]], True),
        ([[0.0, 0.0], [1.0, 2.0]], True),
        ([[]], False),
        ([], False),
    ],
)
def test_outputs_that_are_all_the_same_tell_nothing(outputs: list[list[float]], tells: bool) -> None:
    assert telling([torch.tensor(values) for values in outputs]) is tells
