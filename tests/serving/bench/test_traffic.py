from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from handlers.shapes import Shape
from serving.bench.traffic import (
    TrafficError,
    file_asks,
    of_batch,
    read_shapes,
    sequence,
    tensor_asks,
)

TWO = Shape.parse("image=1x3x4:fp32,mask=1x2:bool")


def test_binary_requests_declare_every_byte() -> None:
    (ask,) = tensor_asks("m", [(TWO, 1.0)])
    head, image, mask = (bytes(part) for part in ask.body)
    assert ask.path == "/v2/models/m/infer"
    assert ask.headers["Inference-Header-Content-Length"] == str(len(head)) and len(head) % 8 == 0
    inputs = json.loads(head)["inputs"]
    assert [entry["parameters"]["binary_data_size"] for entry in inputs] == [len(image), len(mask)] == [48, 2]
    assert [(entry["name"], entry["datatype"], entry["shape"]) for entry in inputs] == [
        ("image", "FP32", [1, 3, 4]),
        ("mask", "BOOL", [1, 2]),
    ]
    assert ask.size == len(head) + 50
    values = np.frombuffer(image, np.float32)
    assert values.min() >= 0 and values.max() < 1 and len(set(values)) > 1


def test_shapes_share_one_buffer() -> None:
    small, large = tensor_asks("m", [(Shape.parse("x=2:fp32"), 1.0), (Shape.parse("x=4:fp32"), 1.0)])
    assert bytes(large.body[1])[:8] == bytes(small.body[1])
    assert np.shares_memory(np.frombuffer(small.body[1], np.uint8), np.frombuffer(large.body[1], np.uint8))


def test_json_requests_hold_the_same_values() -> None:
    (binary,) = tensor_asks("m", [(TWO, 1.0)])
    (text,) = tensor_asks("m", [(TWO, 1.0)], "json")
    document = json.loads(bytes(text.body[0]))
    image = np.array(document["inputs"][0]["data"], np.float32)
    assert image.tobytes() == bytes(binary.body[1])
    assert all(isinstance(value, bool) for value in document["inputs"][1]["data"])


def test_half_precision_has_no_json_form() -> None:
    with pytest.raises(TrafficError, match="no fp16"):
        tensor_asks("m", [(Shape.parse("x=1:fp16"), 1.0)], "json")
    assert tensor_asks("m", [(Shape.parse("x=3:bf16"), 1.0)])[0].size > 6


def test_files_are_sent_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"picture")
    (ask,) = file_asks("m", [tmp_path / "a.png"])
    assert (ask.name, ask.path, ask.headers, ask.body) == (
        "a.png",
        "/predictions/m",
        {"Content-Type": "image/png"},
        (b"picture",),
    )
    with pytest.raises(TrafficError, match=r"b\.png: No such file"):
        file_asks("m", [tmp_path / "b.png"])


def test_requests_follow_the_weights_and_the_seed() -> None:
    order = sequence([6, 3, 1, 0], 5000, seed=1)
    counts = Counter(order)
    assert order == sequence([6, 3, 1, 0], 5000, seed=1) != sequence([6, 3, 1, 0], 5000, seed=2)
    assert counts[3] == 0
    assert abs(counts[0] / 5000 - 0.6) < 0.05 and abs(counts[2] / 5000 - 0.1) < 0.03


@pytest.mark.parametrize("weights", [[], [0.0], [1.0, -1.0]])
def test_nothing_to_send(weights: list[float]) -> None:
    with pytest.raises(TrafficError, match="weight above 0"):
        sequence(weights, 1, seed=0)


def test_only_one_batch_size() -> None:
    shapes = [(Shape.parse("x=1x3:fp32"), 0.5), (Shape.parse("x=4x3:fp32"), 0.5)]
    assert of_batch(shapes, 4) == shapes[1:]
    with pytest.raises(TrafficError, match="batch size 2"):
        of_batch(shapes, 2)


def test_shapes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text('{"shapes": {"x=1x3:float32": 4}}')
    assert read_shapes(path) == [(Shape.parse("x=1x3:fp32"), 4.0)]


@pytest.mark.parametrize("text", ["[]", "{", '{"shapes": {"x=1x3:fp32": null}}', '{"shapes": {"nonsense": 1}}'])
def test_files_that_hold_no_shapes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(text)
    with pytest.raises(TrafficError, match="shapes.json"):
        read_shapes(path)
    with pytest.raises(TrafficError, match="No such file"):
        read_shapes(tmp_path / "absent.json")
