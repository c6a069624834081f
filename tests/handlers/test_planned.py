from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.errors import ModelError
from handlers.planned import largest
from handlers.spec import ModelSpec

Describe = Callable[..., ModelSpec]
ENGINE = {"kind": "onnx", "source": "net.onnx"}
AXES = ("height", "width")


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"grid": {"batch": [1, 64], "height": [32, 16], "width": {"from": 8, "to": 30, "step": 8}}}, (32, 24)),
        ({"list": ["x=1x3x64x8:fp32", "x=1x3x32x32:fp32", "x=9x3x8x8:fp32"]}, (32, 32)),
        ({"learned": "traffic.json"}, (40, 20)),
    ],
)
def test_the_largest_planned_size(
    describe: Describe, tmp_path: Path, shapes: dict[str, Any], expected: tuple[int, int]
) -> None:
    (tmp_path / "traffic.json").write_text(json.dumps({"shapes": {"x=1x3x40x20:fp32": 3, "x=1x3x10x10:fp32": 5}}))
    assert largest(describe(ENGINE, shapes=shapes), tmp_path, AXES) == expected


@pytest.mark.parametrize(
    "text", [None, "{", "[]", "[" * 100_000, '{"shapes": ["nonsense"]}', '{"shapes": {}}'], ids=range(6)
)
def test_a_learned_plan_that_is_wrong(describe: Describe, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "traffic.json").write_text(text)
    with pytest.raises(ModelError, match="model: "):
        largest(describe(ENGINE, shapes={"learned": "traffic.json"}), tmp_path, AXES)


@pytest.mark.parametrize(
    "shapes", [{"list": ["x=1x3x8x8:fp32"]}, {"grid": {"batch": [1], "height": [8], "width": [8]}}]
)
def test_axes_that_no_input_has(describe: Describe, tmp_path: Path, shapes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="depth.*which its handler needs"):
        largest(describe(ENGINE, shapes=shapes), tmp_path, ("height", "depth"))
