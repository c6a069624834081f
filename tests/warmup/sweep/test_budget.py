"""What comes first under a budget, and what no longer fits."""

from __future__ import annotations

from handlers.shapes import Shape
from warmup.sweep.budget import Candidate, Costs, fits, ordered


def candidate(model: str, size: int, weight: float) -> Candidate:
    return Candidate(model, Shape.parse(f"x={size}:fp32"), weight)


SMALL, LARGE = candidate("slow", 1, 0.5), candidate("slow", 2, 0.25)
OTHER = candidate("quick", 1, 1.0)


def costs() -> Costs:
    return Costs({"slow": 10.0, "quick": 0.1})


def test_without_measurements_guesses_by_engine_decide() -> None:
    assert ordered([OTHER, LARGE, SMALL], costs()) == [SMALL, LARGE, OTHER]


def test_weight_times_measured_saving_decides() -> None:
    known = costs()
    known.measured("slow", SMALL.shape, 3.0, 2.9)
    known.measured("slow", LARGE.shape, 30.0, 1.0)
    assert ordered([SMALL, LARGE], known) == [LARGE, SMALL]


def test_a_shape_without_a_measurement_is_expected_to_save_what_its_model_does() -> None:
    known = costs()
    known.measured("slow", Shape.parse("x=9:fp32"), 0.02, 0.01)
    assert ordered([SMALL, LARGE, OTHER], known) == [OTHER, SMALL, LARGE]


def test_an_earlier_sweeps_measurements_count_but_are_not_spent_yet() -> None:
    known = costs()
    known.expect("slow", LARGE.shape, 30.0, 1.0)
    known.expect("slow", SMALL.shape, 3.0, 1.0)
    assert ordered([SMALL, LARGE], known) == [LARGE, SMALL]
    assert known.afterwards() == 0.0
    assert not fits(LARGE, known, 29.0)
    assert fits(SMALL, known, 29.0)


def test_what_is_tuned_keeps_its_time_to_be_sealed_and_proven() -> None:
    known = costs()
    known.load["slow"] = 4.0
    known.measured("slow", SMALL.shape, 10.0, 1.0)
    reserve = known.afterwards()
    assert reserve > 2 * 4.0 + 7 * 1.0
    assert not fits(LARGE, known, reserve + 10.0)
    assert fits(LARGE, known, reserve + 12.1)


def test_a_model_of_which_nothing_is_known_is_tried_while_time_is_left() -> None:
    assert fits(SMALL, costs(), 0.1)
    assert not fits(SMALL, costs(), 0.0)


def test_equal_values_stay_together_by_model() -> None:
    known = Costs({"a": 1.0, "b": 1.0})
    mixed = [candidate("b", 1, 0.5), candidate("a", 1, 0.5), candidate("b", 2, 0.5), candidate("a", 2, 0.5)]
    assert [c.model for c in ordered(mixed, known)] == ["a", "a", "b", "b"]
