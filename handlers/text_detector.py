"""Finds text in images: PP-OCR's detection models, which answer a map of how probable text is at each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from handlers.boxes import find_boxes
from handlers.handler import Handler, Payload, Prepared, Tensors
from handlers.images import read_image
from handlers.planned import largest
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from handlers.values import require_finite

STRIDE = 32  # the network halves its input five times, so sizes are multiples of this


@dataclass(frozen=True)
class Fit:
    """The size of an image in pixels, and the size to which it was brought for the network."""

    width: int
    height: int
    fit_width: int
    fit_height: int


class TextDetector(Handler):
    """JPEG or PNG in; ``{"width", "height", "boxes": [{"points": 4 x [x, y], "score"}]}`` out, in the image's pixels.

    Padding is grey and only costs time: the answer is cut to the image. It may move a box by a few pixels, since the
    network also looks at averages over its whole input.
    """

    def initialize(self, spec: ModelSpec, folder: Path) -> None:
        super().initialize(spec, folder)
        self._input = spec.inputs[0].name
        self._height, self._width = largest(spec, folder, ("height", "width"))

    def preprocess(self, payload: Payload) -> Prepared:
        image = read_image(payload)
        height, width = image.shape[:2]
        fit_height, fit_width = fit(height, width, self._height, self._width)
        # Bytes to [-1, 1], in the order blue, green, red: what the PP-OCR models of rapidocr are run with.
        blob = cv2.dnn.blobFromImage(image, 1 / 127.5, (fit_width, fit_height), (127.5, 127.5, 127.5), swapRB=True)
        return Prepared({self._input: blob}, Fit(width, height, fit_width, fit_height))

    def postprocess(self, outputs: Tensors, context: Any) -> Any:
        (probabilities,) = outputs.values()
        scale = np.array([context.width / context.fit_width, context.height / context.fit_height])
        limit = (context.width - 1, context.height - 1)
        boxes = [
            {
                "points": np.clip(np.round(box.corners * scale), 0, limit).astype(int).tolist(),
                "score": round(box.score, 4),
            }
            for box in find_boxes(probabilities[0, 0])
        ]
        return {"width": context.width, "height": context.height, "boxes": boxes}

    def check(self, inputs: Tensors) -> None:
        require_finite(inputs)

    def crop(self, outputs: Tensors, asked: Shape, ran: Shape) -> Tensors:
        height, width = asked[self._input].dims[-2:]
        return {name: array[..., :height, :width] for name, array in outputs.items()}


def fit(height: int, width: int, max_height: int, max_width: int) -> tuple[int, int]:
    """The size nearest to the image's own that is a multiple of the stride and no larger than what is planned."""
    scale = min(1.0, max_height / height, max_width / width)
    return _multiple(height * scale, max_height), _multiple(width * scale, max_width)


def _multiple(size: float, most: int) -> int:
    return max(STRIDE, min(round(size / STRIDE) * STRIDE, most // STRIDE * STRIDE))
