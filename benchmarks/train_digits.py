"""Trains the ``digits`` model and states how well it reads digits that it has not seen.

    python benchmarks/train_digits.py

Takes about two minutes on two CPU cores. Writes ``digits.safetensors`` and ``accuracy.json`` into model_store/digits.
The digits are scikit-learn's (8 x 8 pixels, written by many hands; UCI "Optical Recognition of Handwritten Digits"),
enlarged and placed on canvases with noise and strokes. The last fifth is held out; other people wrote it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from sklearn.datasets import load_digits

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "model_store" / "digits"
TRAINED = 1437  # of 1797 digits, in the data set's order
SPACE = 32  # pixels between the middles of neighbouring places on a canvas
HIT = 4.0  # pixels: how close a reading must be to a digit's middle to count


@dataclass(frozen=True)
class Canvas:
    """An image (``height x width``, 0 to 1) and the digits on it: value, x and y of the middle, for each."""

    image: np.ndarray
    digits: tuple[tuple[int, float, float], ...]


def digit_images(held_out: bool) -> tuple[np.ndarray, np.ndarray]:
    """The digits (``count x 8 x 8``, 0 to 1) and their values: those that were held out, or those for training."""
    images, values = map(np.asarray, load_digits(return_X_y=True))
    part = slice(TRAINED, None) if held_out else slice(0, TRAINED)
    return (images[part].reshape(-1, 8, 8) / 16.0).astype(np.float32), values[part]


def draw(generator: np.random.Generator, height: int, width: int, images: np.ndarray, values: np.ndarray) -> Canvas:
    """A canvas with digits of 16 to 28 pixels on about two thirds of its places."""
    canvas = np.full((height, width), generator.uniform(0.0, 0.15), np.float32)
    if generator.random() < 0.5:
        ends = generator.integers(0, (width, height), (2, 2))
        cv2.line(canvas, ends[0].tolist(), ends[1].tolist(), float(generator.uniform(0.1, 0.5)), 1)
    digits = []
    for top in range(0, height - SPACE + 1, SPACE):
        for left in range(0, width - SPACE + 1, SPACE):
            if generator.random() < 0.35:
                continue
            pick = int(generator.integers(len(images)))
            size = int(generator.integers(16, 29))
            y, x = top + int(generator.integers(SPACE - size + 1)), left + int(generator.integers(SPACE - size + 1))
            ink = cv2.resize(images[pick], (size, size), interpolation=cv2.INTER_CUBIC).clip(0, 1)
            place = canvas[y : y + size, x : x + size]
            np.maximum(place, ink * generator.uniform(0.6, 1.0), out=place)
            digits.append((int(values[pick]), x + size / 2, y + size / 2))
    canvas += generator.normal(0.0, generator.uniform(0.0, 0.06), canvas.shape).astype(np.float32)
    return Canvas(canvas.clip(0, 1), tuple(digits))


def targets(canvas: Canvas, cell: int, background: int) -> tuple[np.ndarray, np.ndarray]:
    """For each cell its class (-100 where either answer will do), and ``2 x rows x columns`` offsets in cells."""
    rows, columns = canvas.image.shape[0] // cell, canvas.image.shape[1] // cell
    middle_y, middle_x = np.meshgrid((np.arange(rows) + 0.5) * cell, (np.arange(columns) + 0.5) * cell, indexing="ij")
    classes = np.full((rows, columns), background, np.int64)
    offsets = np.zeros((2, rows, columns), np.float32)
    for value, x, y in canvas.digits:
        distance = np.hypot(middle_x - x, middle_y - y)
        classes[(distance < 2.2 * cell) & (classes == background)] = -100
        inside = distance < 1.1 * cell
        classes[inside] = value
        offsets[0][inside] = ((x - middle_x) / cell)[inside]
        offsets[1][inside] = ((y - middle_y) / cell)[inside]
    return classes, offsets


def train(steps: int = 500, batch: int = 16, side: int = 96, seed: int = 0) -> dict[str, np.ndarray]:
    """The trained weights by name."""
    import torch
    from torch import nn

    from handlers.digit_reader import CELL, CLASSES
    from handlers.sources import load_class

    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    images, values = digit_images(held_out=False)
    net = load_class(FOLDER, "net.py:DigitNet")()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for step in range(steps):
        canvases = [draw(generator, side, side, images, values) for _ in range(batch)]
        wanted = [targets(canvas, CELL, CLASSES - 1) for canvas in canvases]
        classes = torch.from_numpy(np.stack([classes for classes, _ in wanted]))
        offsets = torch.from_numpy(np.stack([offsets for _, offsets in wanted]))
        answer = net(torch.from_numpy(np.stack([canvas.image for canvas in canvases])[:, None]))
        inside = (classes >= 0) & (classes < CLASSES - 1)
        reading = nn.functional.cross_entropy(answer[:, :CLASSES], classes, ignore_index=-100, label_smoothing=0.02)
        place = (answer[:, CLASSES:] - offsets).abs().sum(1)[inside].mean()
        loss = reading + 0.2 * place
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            print(f"step {step + 1}/{steps}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    return {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}


def evaluate(canvases: int, seed: int = 1) -> dict[str, float | int]:
    """Reads canvases of held-out digits with the model as it is served: which share of the digits was found and right
    (``recall``), and which share of the readings was a digit's, and right (``precision``).
    """
    from handlers.digit_reader import read_grid
    from handlers.engines.torch import TorchEngine
    from handlers.spec import load_spec

    spec = load_spec(FOLDER)
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"execution": "eager"})})
    engine = TorchEngine(spec, FOLDER, {"torch.device": "cpu"})
    engine.load()
    generator = np.random.default_rng(seed)
    images, values = digit_images(held_out=True)
    shown = read = right = 0
    for _ in range(canvases):
        canvas = draw(generator, 128, 256, images, values)
        found = read_grid(engine.run({"image": canvas.image[None, None]})["cells"][0])
        shown += len(canvas.digits)
        read += len(found)
        right += sum(
            any(digit.digit == value and np.hypot(digit.x - x, digit.y - y) <= HIT for digit in found)
            for value, x, y in canvas.digits
        )
    return {
        "canvases": canvases,
        "digits": shown,
        "recall": round(right / shown, 4),
        "precision": round(right / read, 4),
    }


def main() -> None:
    from safetensors.numpy import save_file

    from handlers.sources import file_digest

    path = FOLDER / "digits.safetensors"
    save_file(train(), path)
    stated = {"held_out": evaluate(200), "weights_sha256": file_digest(path), "made_by": "benchmarks/train_digits.py"}
    (FOLDER / "accuracy.json").write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(stated["held_out"]))


if __name__ == "__main__":
    main()
