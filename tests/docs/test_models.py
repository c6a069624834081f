"""The page on models says something about every key of model.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from handlers.engine_spec import EngineSpec
from handlers.spec import ModelSpec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name
        for kind in _models(field.annotation):
            yield from _keys(kind)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models(part)


@pytest.mark.parametrize("key", sorted(set(_keys(ModelSpec))))
def test_every_key_is_on_the_page(key: str) -> None:
    code = " ".join(re.findall(r"```.*?```|`[^`]+`", PAGE, re.DOTALL))
    assert re.search(rf"(?<![\w]){key}(?![\w])", code), f"docs/models.md says nothing of {key}"


@pytest.mark.parametrize("field", ["kind", "precision", "execution"])
def test_every_choice_of_the_engine_is_on_the_page(field: str) -> None:
    for choice in EngineSpec.model_fields[field].annotation.__args__:  # type: ignore[union-attr]
        assert re.search(rf"\b{re.escape(choice)}\b", PAGE), f"docs/models.md says nothing of {field}: {choice}"
