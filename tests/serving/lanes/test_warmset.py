from __future__ import annotations

import pytest

from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.warmset import Outcome, WarmSet


@pytest.fixture
def warm(spec: ModelSpec) -> WarmSet:
    warm = WarmSet(spec)
    for text, seconds in (("x=1x4:fp32", 0.1), ("x=4x4:fp32", 0.2), ("x=1x8:fp32", 0.15), ("x=2x8:fp32", 0.25)):
        warm.admit(Shape.parse(text), seconds)
    return warm


@pytest.mark.parametrize(
    ("dims", "outcome", "tails"),
    [
        ((1, 4), Outcome.WARM, ((4,),)),
        ((4, 4), Outcome.WARM, ((4,),)),
        ((2, 4), Outcome.PADDED, ((4,),)),  # rows are padded to 4
        ((1, 3), Outcome.PADDED, ((4,),)),  # 1x4 at 0.1 s is cheaper than 1x8 at 0.15 s
        ((1, 5), Outcome.PADDED, ((8,),)),
        ((3, 5), Outcome.COLD, None),  # 8 wide has at most 2 rows
        ((5, 4), Outcome.COLD, None),
        ((1, 9), Outcome.COLD, None),
    ],
)
def test_route(warm: WarmSet, dims: tuple[int, ...], outcome: Outcome, tails: object) -> None:
    route = warm.find((dims,))
    assert (route.outcome, route.tails, route.rows) == (outcome, tails, dims[0])


def test_padding_needs_the_policy_and_the_axis(spec: ModelSpec) -> None:
    for changes in ({"cold": "run"}, {"cold": "reject"}):
        warm = WarmSet(spec.model_copy(update=changes))
        warm.admit(Shape.parse("x=1x8:fp32"), 0.1)
        assert warm.find(((1, 5),)).outcome is Outcome.COLD
        assert warm.find(((1, 8),)).outcome is Outcome.WARM


def test_an_admission_is_seen_at_once(warm: WarmSet) -> None:
    assert warm.find(((1, 9),)).outcome is Outcome.COLD
    version = warm.version
    warm.admit(Shape.parse("x=1x16:fp32"), 0.3)
    assert warm.find(((1, 9),)).outcome is Outcome.PADDED
    assert warm.version > version


def test_routes_stay_bounded_whatever_clients_ask_for(warm: WarmSet) -> None:
    for width in range(1, 10_000):
        warm.find(((1, width),))
    assert len(warm._routes) <= 4096


def test_nearest_names_the_closest_shapes_first(warm: WarmSet) -> None:
    assert warm.nearest(((2, 9),), 2) == ("x=2x8:fp32", "x=1x8:fp32")


def test_a_model_without_a_batch_axis_has_one_row() -> None:
    spec = ModelSpec.model_validate(
        {
            "name": "flat",
            "engine": {"kind": "python", "source": "none.py:None"},
            "inputs": [{"name": "x", "dtype": "fp32", "dims": ["width"]}],
            "shapes": {"list": ["x=4:fp32"]},
        }
    )
    warm = WarmSet(spec)
    warm.admit(Shape.parse("x=4:fp32"), 0.1)
    assert warm.find(((4,),)).outcome is Outcome.WARM
    assert warm.find(((5,),)).outcome is Outcome.COLD
    assert warm.shape(((4,),), 1).text == "x=4:fp32"
