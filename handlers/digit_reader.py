"""Reads digits anywhere in an image, with a network that answers for a grid of cells: which digit, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from handlers.handler import Handler, Payload, Prepared, Tensors
from handlers.images import read_image
from handlers.planned import largest
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from handlers.values import require_finite

CELL = 4  # pixels of the input along one side of a cell of the output
CLASSES = 11  # ten digits, then background; two more channels hold x and y within the cell
NEAR = 8.0  # pixels: of two readings closer than this the less certain one is dropped
CERTAIN = 0.5  # the least probability of a reading


@dataclass(frozen=True)
class Digit:
    """One reading: the digit, its centre in pixels of the network's input, and its probability."""

    digit: int
    x: float
    y: float
    score: float


@dataclass(frozen=True)
class View:
    """The size of an image in pixels, and how many of them make one pixel of the network's input."""

    width: int
    height: int
    scale: float


class DigitReader(Handler):
    """JPEG or PNG in; ``{"width", "height", "digits": [{"digit", "x", "y", "score"}]}`` out, in the image's pixels.

    Digits are about 16 to 28 pixels high, light on dark or dark on light. Padding is as dark as the background and
    changes nothing: every cell of the answer sees only pixels within a fixed distance, black beyond the image.
    """

    def initialize(self, spec: ModelSpec, folder: Path) -> None:
        super().initialize(spec, folder)
        self._input = spec.inputs[0].name
        self._height, self._width = largest(spec, folder, ("height", "width"))

    def preprocess(self, payload: Payload) -> Prepared:
        grey = cv2.cvtColor(read_image(payload), cv2.COLOR_RGB2GRAY)
        height, width = grey.shape
        scale = max(1.0, height / self._height, width / self._width)
        if scale > 1.0:
            size = (max(1, int(width / scale)), max(1, int(height / scale)))
            grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
        light = grey.astype(np.float32) / 255.0
        if np.median(light) > 0.5:
            light = 1.0 - light
        return Prepared({self._input: to_cells(light)[None, None]}, View(width, height, scale))

    def postprocess(self, outputs: Tensors, context: Any) -> Any:
        (grid,) = outputs.values()
        digits = [
            {
                "digit": digit.digit,
                "x": round(digit.x * context.scale, 1),
                "y": round(digit.y * context.scale, 1),
                "score": round(digit.score, 4),
            }
            for digit in read_grid(grid[0])
        ]
        return {"width": context.width, "height": context.height, "digits": digits}

    def check(self, inputs: Tensors) -> None:
        require_finite(inputs)

    def crop(self, outputs: Tensors, asked: Shape, ran: Shape) -> Tensors:
        height, width = (-(-size // CELL) for size in asked[self._input].dims[-2:])
        return {name: array[..., :height, :width] for name, array in outputs.items()}


def to_cells(light: np.ndarray) -> np.ndarray:
    """The image (``height x width``, 0 is background), with background added up to whole cells."""
    height, width = light.shape
    return np.pad(light, ((0, -height % CELL), (0, -width % CELL)))


def read_grid(grid: np.ndarray) -> list[Digit]:
    """The readings in ``(CLASSES + 2) x rows x columns`` of logits and offsets, from the left and then from the top."""
    logits = grid[:CLASSES] - grid[:CLASSES].max(axis=0)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=0)
    best = probabilities[: CLASSES - 1].max(axis=0)
    rows, columns = np.nonzero(best >= CERTAIN)
    found: list[Digit] = []
    for index in np.argsort(-best[rows, columns], kind="stable"):
        row, column = rows[index], columns[index]
        x = (column + 0.5 + float(grid[CLASSES, row, column])) * CELL
        y = (row + 0.5 + float(grid[CLASSES + 1, row, column])) * CELL
        if all((x - other.x) ** 2 + (y - other.y) ** 2 >= NEAR**2 for other in found):
            digit = int(probabilities[: CLASSES - 1, row, column].argmax())
            found.append(Digit(digit, float(x), float(y), float(best[row, column])))
    return sorted(found, key=lambda digit: (digit.x, digit.y))
