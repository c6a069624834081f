from __future__ import annotations

import math

import numpy as np
import pytest

from handlers.engines.agreement import ENGINES, ROUNDING, SAME, measure, widened


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_equal_arrays_agree_whatever_they_hold() -> None:
    special = floats(1, math.nan, math.inf, -math.inf)
    assert measure(special, special.copy()) == SAME
    assert measure(floats(0, 0), floats(0, 0)) == SAME
    assert measure(floats(math.nan), floats(math.nan)) == SAME
    assert measure(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)) == SAME


def test_the_error_is_relative_to_the_largest_value() -> None:
    found = measure(floats(4, 0.001), floats(4, 0.003))
    assert found.absolute == pytest.approx(0.002)
    assert found.relative == pytest.approx(0.0005)
    assert found.within(ENGINES["fp32"]) and not found.within(ROUNDING["fp32"])


def test_the_cosine_is_that_of_the_angle() -> None:
    assert measure(floats(1, 0), floats(0, 1)).cosine == pytest.approx(0)
    assert measure(floats(1, 1), floats(1, 0)).cosine == pytest.approx(math.sqrt(0.5))
    assert measure(floats(1, 2), floats(-1, -2)).cosine == pytest.approx(-1)
    assert measure(floats(0, 0), floats(1, 0)).cosine == 0


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (floats(1, 2), floats(1, math.nan)),
        (floats(1, math.inf), floats(1, -math.inf)),
        (floats(0, 0), floats(0, 1)),
        (floats(1, 2), floats(1, 2, 3)),
        (floats(1, 2), np.array([1, 2], np.float16)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([True]), np.array([False])),
    ],
)
def test_what_can_not_be_close_is_infinitely_far(expected: np.ndarray, found: np.ndarray) -> None:
    assert math.isinf(measure(expected, found).relative)
    assert not measure(expected, found).within(1e6)


def test_words_of_bf16_are_widened_and_other_words_are_not() -> None:
    words = np.array([0x3F80, 0xC000], np.uint16)
    np.testing.assert_array_equal(widened(words, "bf16"), floats(1, -2))
    assert widened(words, "uint16") is words
