"""What a worker does before a framework reads its settings."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from handlers.errors import ModelError
from handlers.loading import Model
from serving.torchserve.restore import SettingsTooLate, restore
from serving.torchserve.settings import Settings
from warmup.bundle.files import BundleRefused


@pytest.fixture
def unpacked(make_model: Callable[..., Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive as TorchServe unpacks it, without a bundle, in a process that has compiled nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    shutil.copytree(make_model().folder, tmp_path / "unpacked" / "model")
    return tmp_path / "unpacked"


@pytest.mark.parametrize("bundle", ["", "bundle.tar", "/nowhere/bundle"])
def test_without_a_bundle_a_required_proof_is_missed(unpacked: Path, tmp_path: Path, bundle: str) -> None:
    with pytest.raises(ModelError, match="no bundle, and a proof is required"):
        restore(unpacked, Settings(bundle=bundle), tmp_path / "scratch")


@pytest.mark.parametrize("bundle", ["", "/nowhere/bundle"])
def test_where_none_is_required_the_model_is_served_cold(
    unpacked: Path, tmp_path: Path, bundle: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "preheat.torchserve"):
        prepared = restore(unpacked, Settings(bundle=bundle, require_proof=False), tmp_path / "scratch")
    assert prepared.bundle is None
    assert prepared.served[0].proof is None
    assert "served unproven" in caplog.text


@pytest.mark.parametrize("require_proof", [True, False])
def test_a_bundle_that_is_there_and_damaged_is_refused_always(
    unpacked: Path, tmp_path: Path, require_proof: bool
) -> None:
    (unpacked / "bundle.tar").write_bytes(b"not a tar")
    settings = Settings(bundle="bundle.tar", digest="sha256:" + "0" * 64, require_proof=require_proof)
    with pytest.raises(BundleRefused):
        restore(unpacked, settings, tmp_path / "scratch")


def test_settings_that_come_too_late_are_refused(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.config", ModuleType("config"))
    with pytest.raises(SettingsTooLate, match="before the settings of the serving phase were made"):
        restore(unpacked, Settings(require_proof=False), tmp_path / "scratch")


def test_a_model_that_is_not_in_the_archive_is_named(unpacked: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="elsewhere"):
        restore(unpacked, Settings(model="elsewhere"), tmp_path / "scratch")
