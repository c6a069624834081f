"""Models with another description than their own: another plan, say, or another execution."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml


@contextmanager
def variant(model: Path, store: Path) -> Iterator[dict[str, Any]]:
    """Copies a model's folder into a model store. Its description is given, and written there as it then is."""
    copy = store / model.name
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("__pycache__"))
    description = copy / "model.yaml"
    document = yaml.safe_load(description.read_text(encoding="utf-8"))
    yield document
    description.write_text(yaml.safe_dump(document), encoding="utf-8")
