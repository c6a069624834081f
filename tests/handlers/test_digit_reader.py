from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from handlers.digit_reader import CELL, CLASSES, DigitReader, read_grid, to_cells
from handlers.engines.engine import Engine
from handlers.engines.torch import TorchEngine
from handlers.errors import InvalidInput
from handlers.handler import Payload
from handlers.loading import load_handler
from handlers.shapes import Shape
from handlers.sources import file_digest, load_module
from handlers.spec import load_spec

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "model_store" / "digits"
Encode = Callable[..., bytes]


@pytest.fixture(scope="module")
def training() -> ModuleType:
    return load_module(REPOSITORY / "benchmarks", "train_digits.py")


@pytest.fixture(scope="module")
def reader() -> DigitReader:
    spec = load_spec(FOLDER)
    handler = load_handler(spec, FOLDER)
    assert isinstance(handler, DigitReader)
    handler.initialize(spec, FOLDER)
    return handler


@pytest.fixture(scope="module")
def engine() -> Engine:
    spec = load_spec(FOLDER)
    eager = spec.model_copy(update={"engine": spec.engine.model_copy(update={"execution": "eager"})})
    engine = TorchEngine(eager, FOLDER, {"torch.device": "cpu"})
    engine.load()
    return engine


def canvas(training: ModuleType, height: int, width: int, seed: int = 5) -> tuple[np.ndarray, tuple]:
    images, values = training.digit_images(held_out=True)
    drawn = training.draw(np.random.default_rng(seed), height, width, images, values)
    return drawn.image, drawn.digits


def test_the_stated_accuracy_is_that_of_these_weights() -> None:
    stated = json.loads((FOLDER / "accuracy.json").read_text())
    assert stated["weights_sha256"] == file_digest(FOLDER / "digits.safetensors")
    assert stated["held_out"]["recall"] > 0.93
    assert stated["held_out"]["precision"] > 0.93
    assert (FOLDER / "digits.safetensors").stat().st_size < 1_000_000


def test_the_stated_accuracy_is_reached_again(training: ModuleType) -> None:
    stated = json.loads((FOLDER / "accuracy.json").read_text())["held_out"]
    found = training.evaluate(40, seed=2)
    assert found["digits"] > 500
    assert found["recall"] > stated["recall"] - 0.03
    assert found["precision"] > stated["precision"] - 0.03


def test_held_out_digits_were_not_trained_on(training: ModuleType) -> None:
    trained, _ = training.digit_images(held_out=False)
    unseen, _ = training.digit_images(held_out=True)
    assert len(trained) + len(unseen) == 1797
    assert not {image.tobytes() for image in trained} & {image.tobytes() for image in unseen}


@pytest.mark.parametrize("dark_on_light", [False, True])
def test_reads_a_png_in_the_images_own_pixels(
    training: ModuleType, reader: DigitReader, engine: Engine, encode: Encode, dark_on_light: bool
) -> None:
    image, digits = canvas(training, 96, 90)
    grey = (255 * (1 - image if dark_on_light else image)).round().astype(np.uint8)
    prepared = reader.preprocess(Payload(encode(grey)))
    found = reader.postprocess(engine.run(prepared.inputs), prepared.context)
    assert (found["width"], found["height"]) == (90, 96)
    right = sum(
        any(d["digit"] == value and abs(d["x"] - x) <= 4 and abs(d["y"] - y) <= 4 for d in found["digits"])
        for value, x, y in digits
    )
    assert right >= len(digits) - 1
    assert len(digits) >= 3


def test_a_larger_image_is_scaled_down_and_answered_in_its_own_pixels(
    training: ModuleType, reader: DigitReader, engine: Engine, encode: Encode
) -> None:
    image, digits = canvas(training, 128, 256)
    large = Image.fromarray((255 * image).astype(np.uint8)).resize((768, 384), Image.Resampling.BICUBIC)
    prepared = reader.preprocess(Payload(encode(large)))
    assert prepared.inputs["image"].shape == (1, 1, 128, 256)
    found = reader.postprocess(engine.run(prepared.inputs), prepared.context)["digits"]
    right = sum(
        any(d["digit"] == value and abs(d["x"] - 3 * x) <= 12 and abs(d["y"] - 3 * y) <= 12 for d in found)
        for value, x, y in digits
    )
    assert right >= 0.85 * len(digits)


@pytest.mark.parametrize("size", [(64, 128), (40, 92), (4, 4), (96, 96)])
def test_padding_changes_nothing(
    training: ModuleType, reader: DigitReader, engine: Engine, size: tuple[int, int]
) -> None:
    image = np.ascontiguousarray(canvas(training, 96, 128)[0][None, None, : size[0], : size[1]])
    plain = engine.run({"image": image})
    whole = np.full((4, 1, 128, 256), reader.pad_value("image"), np.float32)
    whole[1:2, :, : size[0], : size[1]] = image
    padded = {name: array[1:2] for name, array in engine.run({"image": whole}).items()}
    cut = reader.crop(padded, Shape.of({"image": image}), Shape.of({"image": whole}))
    assert cut["cells"].shape == plain["cells"].shape
    np.testing.assert_allclose(cut["cells"], plain["cells"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (2000, 1), (5, 6)])
def test_odd_sizes_are_taken(reader: DigitReader, engine: Engine, encode: Encode, size: tuple[int, int]) -> None:
    prepared = reader.preprocess(Payload(encode(Image.new("L", size))))
    array = prepared.inputs["image"]
    assert array.shape[:2] == (1, 1)
    assert all(side % CELL == 0 and side > 0 for side in array.shape[2:])
    assert reader.postprocess(engine.run(prepared.inputs), prepared.context)["digits"] == []


def test_the_same_image_has_the_same_answer(training: ModuleType, engine: Engine) -> None:
    image = canvas(training, 64, 64)[0][None, None]
    assert np.array_equal(engine.run({"image": image})["cells"], engine.run({"image": image})["cells"])


def grid(*cells: tuple[int, int, int, float, float, float]) -> np.ndarray:
    """A grid of 8 x 8 that says background but for cells: row, column, digit, logit, x and y in the cell."""
    whole = np.zeros((CLASSES + 2, 8, 8), np.float32)
    whole[CLASSES - 1] = 9.0
    for row, column, digit, logit, x, y in cells:
        whole[digit, row, column] = 9.0 + logit
        whole[CLASSES:, row, column] = x, y
    return whole


def test_an_empty_grid_reads_nothing() -> None:
    assert read_grid(grid()) == []


def test_a_reading_lies_where_its_cell_says() -> None:
    (found,) = read_grid(grid((2, 3, 7, 4.0, 0.25, -0.5)))
    assert (found.digit, found.x, found.y) == (7, (3.5 + 0.25) * CELL, (2.5 - 0.5) * CELL)
    assert found.score == pytest.approx(1 / (1 + np.exp(-4)), abs=0.01)


def test_of_near_readings_the_surest_stays() -> None:
    found = read_grid(grid((2, 2, 7, 2.0, 0, 0), (2, 3, 1, 5.0, 0, 0), (2, 6, 4, 3.0, 0, 0)))
    assert [digit.digit for digit in found] == [1, 4]


def test_doubtful_readings_are_left_out() -> None:
    assert read_grid(grid((2, 2, 7, -0.5, 0, 0))) == []


def test_cells_are_whole() -> None:
    cells = to_cells(np.ones((5, 8), np.float32))
    assert cells.shape == (8, 8)
    assert cells.sum() == 40


def test_values_that_are_not_finite_are_refused(reader: DigitReader) -> None:
    with pytest.raises(InvalidInput, match="'image'"):
        reader.check({"image": np.full((1, 1, 4, 4), np.nan, np.float32)})
