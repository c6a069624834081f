"""Boxes from a probability map, as in differentiable binarization (Liao et al., "Real-time Scene Text Detection with
Differentiable Binarization", AAAI 2020): regions above a threshold, each as its smallest rectangle, grown again by
what training had shrunk it.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import pyclipper

_GRID = 1 << 10  # clipper works on whole numbers: steps of 1/1024 pixel


@dataclass(frozen=True)
class Thresholds:
    """``pixel``: what belongs to a region. ``box``: the least mean probability of a region that counts. ``growth``:
    area over perimeter times this is the distance by which a rectangle grows. ``side``: the shortest side in pixels
    of a rectangle before it grows. ``most``: how many regions are looked at.

    The defaults are those that PP-OCR's detection models are published with.
    """

    pixel: float = 0.3
    box: float = 0.6
    growth: float = 1.5
    side: float = 3.0
    most: int = 1000


@dataclass(frozen=True)
class Box:
    """A rectangle, its corners clockwise from the top left as x and y in pixels (``4x2``), and its score in [0, 1]."""

    corners: np.ndarray
    score: float


def find_boxes(probabilities: np.ndarray, thresholds: Thresholds = Thresholds()) -> list[Box]:
    """The boxes in a ``height x width`` map of probabilities, from the top down and then from the left."""
    regions = (probabilities > thresholds.pixel).astype(np.uint8)
    contours, _ = cv2.findContours(regions, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes = []
    for contour in contours[: thresholds.most]:
        rectangle = cv2.minAreaRect(contour)
        if min(rectangle[1]) < thresholds.side:
            continue
        corners = cv2.boxPoints(rectangle)
        score = mean_inside(probabilities, corners)
        if score >= thresholds.box:
            boxes.append(Box(clockwise(grown(corners, thresholds.growth)), score))
    return sorted(boxes, key=lambda box: (float(box.corners[:, 1].min()), float(box.corners[:, 0].min())))


def mean_inside(probabilities: np.ndarray, corners: np.ndarray) -> float:
    """The mean of the map inside a polygon."""
    height, width = probabilities.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1))
    mask = np.zeros((bottom - top + 1, right - left + 1), dtype=np.uint8)
    cv2.fillPoly(mask, [np.round(corners - (left, top)).astype(np.int32)], 1)  # type: ignore[call-overload]
    return float(cv2.mean(probabilities[top : bottom + 1, left : right + 1], mask)[0])


def grown(corners: np.ndarray, growth: float) -> np.ndarray:
    """The smallest rectangle around the polygon that lies ``growth * area / perimeter`` outside of the given one."""
    outline = corners.astype(np.float32)
    distance = growth * cv2.contourArea(outline) / cv2.arcLength(outline, True)
    offset = pyclipper.PyclipperOffset()  # type: ignore[attr-defined]
    offset.AddPath(
        np.round(outline * _GRID).astype(np.int64).tolist(),
        pyclipper.JT_ROUND,  # type: ignore[attr-defined]
        pyclipper.ET_CLOSEDPOLYGON,  # type: ignore[attr-defined]
    )
    paths = offset.Execute(distance * _GRID)
    points = np.concatenate([np.asarray(path, dtype=np.float32) for path in paths]) / _GRID
    return cv2.boxPoints(cv2.minAreaRect(points))


def clockwise(corners: np.ndarray) -> np.ndarray:
    """The same four corners, clockwise on the screen from the one nearest to the top left."""
    centre = corners.mean(axis=0)
    angles = np.arctan2(corners[:, 1] - centre[1], corners[:, 0] - centre[0])
    ordered = corners[np.argsort(angles)]
    return np.roll(ordered, -int(np.argmin(ordered.sum(axis=1))), axis=0)
