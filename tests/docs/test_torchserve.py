"""The page on TorchServe: its example works as it stands, and it names every line and metric that there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from handlers.errors import InvalidInput
from handlers.handler import Payload
from handlers.loading import load_handler
from handlers.spec import load_spec
from serving.torchserve.metrics import METRICS
from serving.torchserve.properties import properties
from serving.torchserve.settings import Settings
from warmup.plan import expand

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "torchserve.md").read_text(encoding="utf-8")


def _block(language: str, first: str) -> str:
    """The code block of a language that begins with a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if block.startswith(first))


def test_the_model_that_is_migrated_is_one(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(_block("yaml", "name: doubler"))
    (tmp_path / "handler.py").write_text(_block("python", "import json"))
    spec = load_spec(tmp_path)
    assert len(expand(spec, tmp_path)) == 6
    handler = load_handler(spec, tmp_path)
    handler.initialize(spec, tmp_path)
    prepared = handler.preprocess(Payload(json.dumps({"x": [1, 2, 3, 4]}).encode()))
    assert prepared.inputs["x"].shape == (1, 4)
    assert handler.postprocess({"y": np.ones((1, 4))}, prepared.context).tolist() == [1, 1, 1, 1]
    for body in (b"no JSON", b"[1]", b"{}", b'{"x": ["a"]}'):
        with pytest.raises(InvalidInput, match="expected a JSON object with x"):
            handler.preprocess(Payload(body))


def test_every_line_of_the_configuration_is_explained(tmp_path: Path) -> None:
    security = PAGE.split("## Security defaults", 1)[1]
    free = {"model_store", "load_models", "metrics_mode", "metrics_config"}  # they are where archives and metrics are
    assert [key for key in properties(tmp_path, 1) if key not in free and key not in security] == []


def test_every_metric_is_named() -> None:
    assert [metric.name for metric in METRICS if metric.name not in PAGE] == []


def test_every_key_of_the_section_is_named() -> None:
    code = " ".join(re.findall(r"```.*?```|`[^`]+`", PAGE, re.DOTALL))
    assert [key for key in Settings.model_fields if not re.search(rf"\b{key}\b", code)] == []
