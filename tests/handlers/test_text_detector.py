from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image

from handlers.engines.engine import Engine, open_engine
from handlers.errors import InvalidInput
from handlers.handler import Payload
from handlers.loading import load_handler
from handlers.shapes import Shape
from handlers.spec import load_spec
from handlers.text_detector import STRIDE, TextDetector, fit

FOLDER = Path(__file__).parents[2] / "model_store" / "text-detector"
Encode = Callable[..., bytes]
LINES = (("Invoice 2041", (20, 20), 26), ("Preheat serves models", (20, 80), 20), ("Total 13.50 EUR", (60, 140), 24))


@pytest.fixture(scope="module")
def detector() -> TextDetector:
    spec = load_spec(FOLDER)
    handler = load_handler(spec, FOLDER)
    assert isinstance(handler, TextDetector)
    handler.initialize(spec, FOLDER)
    return handler


@pytest.fixture(scope="module")
def engine() -> Engine:
    spec = load_spec(FOLDER)
    engine = open_engine(spec.model_copy(update={"engine": spec.engine.model_copy(update={"threads": 1})}), FOLDER, {})
    engine.load()
    return engine


def answer(detector: TextDetector, engine: Engine, body: bytes, padded: tuple[int, int] | None = None) -> Any:
    """What a client gets; with ``padded``, as if the image had been padded to that height and width."""
    prepared = detector.preprocess(Payload(body))
    (array,) = prepared.inputs.values()
    if padded is None:
        return detector.postprocess(engine.run(prepared.inputs), prepared.context)
    whole = np.full((1, 3, *padded), detector.pad_value("x"), np.float32)
    whole[:, :, : array.shape[2], : array.shape[3]] = array
    outputs = detector.crop(engine.run({"x": whole}), Shape.of(prepared.inputs), Shape.of({"x": whole}))
    return detector.postprocess(outputs, prepared.context)


def document() -> tuple[Image.Image, list[tuple[float, float, float, float]]]:
    """An image with lines of text, and where each is: left, top, right, bottom."""
    image = Image.new("RGB", (300, 190), "white")
    pen = ImageDraw.Draw(image)
    places = []
    for text, place, size in LINES:
        font = ImageFont.load_default(size)
        pen.text(place, text, fill="black", font=font)
        places.append(pen.textbbox(place, text, font=font))
    return image, places


def overlap(points: list[list[int]], place: tuple[float, float, float, float]) -> float:
    """Intersection over union of a box's bounding rectangle and a rectangle."""
    corners = np.array(points)
    left, top = np.maximum(corners.min(axis=0), place[:2])
    right, bottom = np.minimum(corners.max(axis=0), place[2:])
    common = max(0.0, right - left) * max(0.0, bottom - top)
    areas = np.prod(np.ptp(corners, axis=0)) + (place[2] - place[0]) * (place[3] - place[1])
    return float(common / (areas - common))


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_every_rendered_line_is_found_and_nothing_else(
    detector: TextDetector, engine: Engine, encode: Encode, format: str
) -> None:
    image, places = document()
    found = answer(detector, engine, encode(image, format))
    assert (found["width"], found["height"]) == image.size
    assert len(found["boxes"]) == len(places)
    for box, place in zip(found["boxes"], places, strict=True):
        assert overlap(box["points"], place) > 0.5
        assert box["score"] > 0.7


def test_a_scanned_page_has_its_lines(detector: TextDetector, engine: Engine, encode: Encode) -> None:
    """scikit-image's ``page`` is a scan with eight lines, the first of them cut by the edge."""
    found = answer(detector, engine, encode(skimage.data.page()))
    assert 6 <= len(found["boxes"]) <= 9
    for box in found["boxes"]:
        corners = np.array(box["points"])
        assert (corners >= 0).all()
        assert (corners <= (383, 190)).all()
    wide = [box for box in found["boxes"] if np.ptp(np.array(box["points"])[:, 0]) > 250]
    assert len(wide) >= 5


@pytest.mark.parametrize("name", ["camera", "coins", "rocket", "flower.jpg"])
def test_photographs_without_text_have_no_boxes(
    detector: TextDetector, engine: Engine, encode: Encode, name: str
) -> None:
    image = load_sample_image(name) if name.endswith(".jpg") else getattr(skimage.data, name)()
    assert answer(detector, engine, encode(image))["boxes"] == []


@pytest.mark.parametrize("padded", [(192, 320), (192, 480), (320, 480)])
def test_padding_moves_boxes_by_a_few_pixels_at_most(
    detector: TextDetector, engine: Engine, encode: Encode, padded: tuple[int, int]
) -> None:
    body = encode(document()[0])
    plain, wide = answer(detector, engine, body), answer(detector, engine, body, padded)
    assert len(plain["boxes"]) == len(wide["boxes"])
    for mine, other in zip(plain["boxes"], wide["boxes"], strict=True):
        assert np.abs(np.array(mine["points"]) - np.array(other["points"])).max() <= 4


def test_the_same_image_has_the_same_answer(detector: TextDetector, engine: Engine, encode: Encode) -> None:
    body = encode(document()[0])
    assert answer(detector, engine, body) == answer(detector, engine, body)


def test_a_large_image_is_answered_in_its_own_pixels(detector: TextDetector, engine: Engine, encode: Encode) -> None:
    image, places = document()
    large = image.resize((image.width * 3, image.height * 3))
    found = answer(detector, engine, encode(large))
    assert len(found["boxes"]) == len(places)
    for box, place in zip(found["boxes"], places, strict=True):
        assert overlap(box["points"], tuple(3 * side for side in place)) > 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (3000, 2), (31, 33)])
def test_odd_sizes_are_taken(detector: TextDetector, encode: Encode, size: tuple[int, int]) -> None:
    (array,) = detector.preprocess(Payload(encode(Image.new("RGB", size)))).inputs.values()
    assert array.dtype == np.float32
    assert array.shape[:2] == (1, 3)
    assert all(side % STRIDE == 0 and side > 0 for side in array.shape[2:])


def test_bytes_become_minus_one_to_one_in_the_order_blue_green_red(detector: TextDetector, encode: Encode) -> None:
    (array,) = detector.preprocess(Payload(encode(Image.new("RGB", (64, 32), (255, 0, 51))))).inputs.values()
    np.testing.assert_allclose(array[0, :, 5, 5], [51 / 127.5 - 1, -1, 1], atol=1e-6)


@given(
    height=st.integers(1, 20_000),
    width=st.integers(1, 20_000),
    most=st.tuples(st.integers(32, 2000), st.integers(32, 2000)),
)
def test_what_fits_is_planned(height: int, width: int, most: tuple[int, int]) -> None:
    fitted = fit(height, width, *most)
    for side, own, largest in zip(fitted, (height, width), most, strict=True):
        assert side % STRIDE == 0
        assert STRIDE <= side <= largest
        assert side <= max(STRIDE, own + STRIDE / 2)


def test_tensors_that_are_not_finite_are_refused(detector: TextDetector) -> None:
    with pytest.raises(InvalidInput, match="input 'x'"):
        detector.check({"x": np.full((1, 3, 32, 32), np.nan, np.float32)})
