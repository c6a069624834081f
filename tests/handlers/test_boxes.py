from __future__ import annotations

import cv2
import numpy as np
import pytest

from handlers.boxes import Thresholds, clockwise, find_boxes, grown, mean_inside


def painted(*rectangles: tuple[tuple[float, float], tuple[float, float], float], value: float = 0.9) -> np.ndarray:
    """A map of 100 x 200 with rotated rectangles: centre, size, angle in degrees."""
    canvas = np.zeros((100, 200), np.float32)
    for rectangle in rectangles:
        cv2.fillPoly(canvas, [np.round(cv2.boxPoints(rectangle)).astype(np.int32)], value)
    return canvas


def test_an_empty_map_has_no_boxes() -> None:
    assert find_boxes(np.zeros((40, 40), np.float32)) == []


def test_a_rectangle_grows_by_what_training_had_shrunk() -> None:
    (box,) = find_boxes(painted(((100, 50), (80, 20), 0)))
    distance = 1.5 * (80 * 20) / (2 * (80 + 20))
    expected = np.array([[60, 40], [140, 40], [140, 60], [60, 60]]) + distance * np.array(
        [[-1, -1], [1, -1], [1, 1], [-1, 1]]
    )
    np.testing.assert_allclose(box.corners, expected, atol=1.0)
    assert box.score == pytest.approx(0.9, abs=0.02)


def test_a_turned_rectangle_keeps_its_angle() -> None:
    (box,) = find_boxes(painted(((100, 50), (80, 16), 20)))
    across = box.corners[1] - box.corners[0]
    assert np.degrees(np.arctan2(across[1], across[0])) == pytest.approx(20, abs=2)


def test_boxes_come_from_the_top_down_and_then_from_the_left() -> None:
    boxes = find_boxes(painted(((150, 75), (40, 12), 0), ((50, 75), (40, 12), 0), ((100, 25), (40, 12), 0)))
    assert [tuple(np.round(box.corners.mean(axis=0), -1)) for box in boxes] == [(100, 20), (50, 80), (150, 80)]


@pytest.mark.parametrize(
    ("map_", "thresholds"),
    [
        (painted(((100, 50), (80, 20), 0), value=0.25), Thresholds()),
        (painted(((100, 50), (80, 20), 0), value=0.5), Thresholds()),
        (painted(((100, 50), (80, 1), 0)), Thresholds()),
        (painted(((100, 50), (80, 20), 0)), Thresholds(most=0)),
    ],
    ids=["below the pixel threshold", "below the box threshold", "too thin", "more than are looked at"],
)
def test_what_is_no_box(map_: np.ndarray, thresholds: Thresholds) -> None:
    assert find_boxes(map_, thresholds) == []


def test_a_box_may_reach_over_the_edge() -> None:
    (box,) = find_boxes(painted(((0, 50), (60, 20), 0)))
    assert box.corners[:, 0].min() < 0


def test_the_mean_is_taken_inside_the_polygon_only() -> None:
    corners = cv2.boxPoints(((100, 50), (80, 20), 30))
    canvas = painted(((100, 50), (80, 20), 30), value=1.0)
    assert mean_inside(canvas, corners) == pytest.approx(1.0, abs=0.01)
    assert mean_inside(1.0 - canvas, corners) == pytest.approx(0.0, abs=0.01)


def test_no_growth_changes_nothing() -> None:
    corners = np.array([[10, 10], [50, 10], [50, 30], [10, 30]], np.float32)
    assert {tuple(point) for point in np.round(grown(corners, 0.0))} == {tuple(point) for point in corners}


@pytest.mark.parametrize("turn", range(4))
def test_corners_are_clockwise_from_the_top_left(turn: int) -> None:
    corners = np.array([[10, 10], [50, 12], [49, 30], [9, 28]], np.float32)
    assert np.array_equal(clockwise(np.roll(corners, turn, axis=0)), corners)
    assert np.array_equal(clockwise(np.roll(corners[::-1], turn, axis=0)), corners)
