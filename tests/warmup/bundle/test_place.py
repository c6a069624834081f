from __future__ import annotations

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmup.bundle.files import BundleError
from warmup.bundle.place import reserved


def test_nothing_is_visible_before_it_is_committed(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with reserved(target) as place:
        assert stat.S_IMODE(place.staging.stat().st_mode) == 0o700
        (place.staging / "it").mkdir()
        (place.staging / "it" / "file").write_text("x")
        assert not target.exists()
        place.commit(place.staging / "it")
    assert [p.name for p in target.parent.iterdir()] == ["target"]
    assert (target / "file").read_text() == "x"


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"), reserved(tmp_path / "target") as place:
        (place.staging / "it").write_text("x")
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["target", "v[1]*"])
def test_leftovers_of_the_killed_are_removed_and_others_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / f".{name}.partial-abc").mkdir()
    (tmp_path / f".{name}.lock").write_text("")
    (tmp_path / ".other.partial-abc").mkdir()
    with reserved(tmp_path / name):
        assert not (tmp_path / f".{name}.partial-abc").exists()
    assert [p.name for p in tmp_path.iterdir()] == [".other.partial-abc"]


def test_one_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []

    def fill(number: int) -> int:
        with reserved(tmp_path / "target"):
            inside.append(number)
            (tmp_path / f"evidence-{number}").write_text("x")
            together = len(inside)
            inside.remove(number)
        return together

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(fill, range(60))) == {1}
    assert not (tmp_path / ".target.lock").exists()


def test_a_full_directory_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("x")
    with reserved(target) as place:
        (place.staging / "it").mkdir()
        (place.staging / "it" / "new").write_text("x")
        place.commit(place.staging / "it")
    assert [p.name for p in target.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["target"]


# Dies right after the first rename that it makes in Python, and where asked, on a file system that exchanges nothing.
DIES = """
import os, sys
from pathlib import Path
from warmup.bundle import place

renames = Path.rename

def rename(self, target):
    renames(self, target)
    os._exit(9)

if sys.argv[2] == "steps":
    place._exchange = lambda one, other: False
with place.reserved(Path(sys.argv[1])) as reserved:
    (reserved.staging / "it").mkdir()
    (reserved.staging / "it" / "new").write_text("x")
    Path.rename = rename
    reserved.commit(reserved.staging / "it")
"""


@pytest.mark.parametrize(("way", "status", "found"), [("at once", 0, "new"), ("steps", 9, "old")])
def test_a_kill_while_a_directory_is_replaced_loses_neither(tmp_path: Path, way: str, status: int, found: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("x")
    assert subprocess.run([sys.executable, "-c", DIES, target, way], check=False).returncode == status
    with reserved(target):
        assert [p.name for p in target.iterdir()] == [found]
    assert [p.name for p in tmp_path.iterdir()] == ["target"]


def test_a_rename_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("x")
    monkeypatch.setattr("warmup.bundle.place._exchange", lambda one, other: False)
    with pytest.raises(FileNotFoundError), reserved(target) as place:
        place._replace(place.staging / "missing")
    assert [p.name for p in target.iterdir()] == ["old"]


def test_a_mount_point_is_no_target() -> None:
    with pytest.raises(BundleError, match="/proc is a mount point"), reserved(Path("/proc")):
        pass


def test_a_parent_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match=f"{tmp_path / 'file'}: "), reserved(tmp_path / "file" / "target"):
        pass
