from __future__ import annotations

from pathlib import Path

import pytest

from serving import places


def test_caches_follow_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert places.default_bundle() == tmp_path / "preheat" / "bundle"
    assert places.bundle_cache() == tmp_path / "preheat" / "bundles"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.default_bundle() == tmp_path / ".cache" / "preheat" / "bundle"


def test_the_model_store_is_named_or_here_or_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREHEAT_MODEL_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert (places.default_models() / "digits" / "model.yaml").is_file()
    (tmp_path / "model_store").mkdir()
    assert places.default_models() == Path("model_store")
    monkeypatch.setenv("PREHEAT_MODEL_STORE", "/elsewhere")
    assert places.default_models() == Path("/elsewhere")


def test_secrets_go_to_a_directory_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    place = places.runtime_directory()
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o755)
    with pytest.raises(places.UnsafeDirectory, match="0700"):
        places.runtime_directory()
    place.rmdir()
    (tmp_path / "other").mkdir()
    place.symlink_to(tmp_path / "other")
    with pytest.raises(places.UnsafeDirectory):
        places.runtime_directory()
