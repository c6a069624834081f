from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from handlers.spec import ModelSpec
from warmup.stores.store import Phase, Settings
from warmup.stores.tree import TreeStore
from warmup.stores.watch import StoreWatch


class Files(TreeStore):
    name = "files"

    def counts(self, path: PurePosixPath) -> bool:
        return path.suffix != ".lock"

    def damage(self, path: Path) -> str | None:
        return None

    def applies(self, spec: ModelSpec) -> bool:
        return True

    def settings(self, phase: Phase, root: Path) -> Settings:
        return Settings()

    def identity(self) -> dict[str, str]:
        return {}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "old").write_text("1")
    return tmp_path


def test_only_what_is_new_or_changed_since_the_last_look_is_named(root: Path) -> None:
    watch = StoreWatch([Files()], root)
    assert watch.look()["files"].new == ()
    (root / "files" / "new").write_text("2")
    (root / "files" / "busy.lock").write_text("")
    (root / "files" / "old").write_text("changed")
    look = watch.look()["files"]
    assert (look.total, look.new) == (2, ("new", "old"))
    assert watch.look()["files"].new == ()
