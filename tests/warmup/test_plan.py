"""Plans: what a learned file and weights may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handlers.errors import ModelError
from handlers.spec import ModelSpec
from warmup.plan import expand


def spec(**shapes: Any) -> ModelSpec:
    return ModelSpec.model_validate(
        {
            "name": "text",
            "engine": {"kind": "onnx", "source": "net.onnx"},
            "inputs": [{"name": "x", "dtype": "fp32", "dims": ["batch", "width"]}],
            "shapes": shapes,
        }
    )


def test_a_learned_plan_weighs_shapes_by_their_counts(tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text(json.dumps({"shapes": {"x=1x8:fp32": 1, "x=2x8:fp32": 3, "x=3x8:fp32": 0}}))
    plan = expand(spec(learned="seen.json"), tmp_path)
    assert [(planned.shape.text, planned.weight) for planned in plan] == [("x=2x8:fp32", 0.75), ("x=1x8:fp32", 0.25)]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"shapes": {"x=1x8:fp32": 1' + "0" * 400 + "}}",
        '{"shapes": {"x=1x8:fp32": 1' + "0" * 5000 + "}}",
        '{"shapes": {"' + "x" * 10_000 + '": 1}}',
        '{"shapes": [1]}',
    ],
    ids=range(5),
)
def test_a_learned_file_that_is_wrong_is_told_in_short(tmp_path: Path, text: str) -> None:
    (tmp_path / "seen.json").write_text(text)
    with pytest.raises(ModelError, match=r"text: shapes.learned: .*seen\.json: ") as raised:
        expand(spec(learned="seen.json"), tmp_path)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("count", ["Infinity", "1e308"])
def test_counts_that_add_up_to_no_number_are_refused(tmp_path: Path, count: str) -> None:
    (tmp_path / "seen.json").write_text(f'{{"shapes": {{"x=1x8:fp32": {count}, "x=2x8:fp32": {count}}}}}')
    with pytest.raises(ModelError, match="text: shapes: the weights add up to inf"):
        expand(spec(learned="seen.json"), tmp_path)


def test_weights_that_vanish_are_refused(tmp_path: Path) -> None:
    tiny = {"grid": {"batch": [1], "width": [8]}, "weights": {"batch": {1: 1e-300}, "width": {8: 1e-300}}}
    with pytest.raises(ModelError, match=r"the weights add up to 0\.0"):
        expand(spec(**tiny), tmp_path)
