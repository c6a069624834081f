"""The section ``handler: preheat:`` of an archive's model-config.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handlers.errors import ModelError
from serving.torchserve.settings import Settings, read_settings


@pytest.mark.parametrize("config", [{}, {"handler": None}, {"handler": {"profile": True}}, {"minWorkers": 1}])
def test_without_a_section_the_defaults_hold(config: dict[str, Any]) -> None:
    assert read_settings(config) == Settings()
    assert Settings().require_proof


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"bundel": "x"}, "handler.preheat.bundel: unknown key; allowed here: model, bundle, digest"),
        ({"digest": "sha256:12"}, "handler.preheat.digest"),
        ({"require_proof": "maybe"}, "handler.preheat.require_proof"),
        (None, "handler.preheat"),
        ([], "handler.preheat"),
    ],
)
def test_what_is_wrong_is_named(section: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_settings({"handler": {"preheat": section}})


def test_a_bundle_that_the_archive_has_is_meant_first(tmp_path: Path) -> None:
    settings = Settings(bundle="bundle.tar")
    assert settings.location(tmp_path) == "bundle.tar"
    (tmp_path / "bundle.tar").write_bytes(b"")
    assert settings.location(tmp_path) == str(tmp_path / "bundle.tar")
    assert Settings(bundle="s3://bundles/v1").location(tmp_path) == "s3://bundles/v1"
    assert Settings().location(tmp_path) == ""
