from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from warmup.bundle.manifest import Bundle
from warmup.bundle.place import locked
from warmup.bundle.prune import Pruned, hold, prune
from warmup.bundle.pull import pull_into_cache
from warmup.bundle.trust import Trust

DAY = 86400.0


@contextmanager
def used_by_another_process(path: Path) -> Iterator[None]:
    code = "import sys; from pathlib import Path; from warmup.bundle.prune import hold; assert hold(Path(sys.argv[1]))"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print('held', flush=True); sys.stdin.read()", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.kill()
        process.communicate()


def aged(path: Path, days: float) -> Path:
    """The copy, as if it had last been used so many days ago."""
    then = time.time() - days * DAY
    use = path.with_name(f".{path.name}.used")
    use.touch()
    os.utime(use, (then, then))
    return path


def copy(cache: Path, digit: str, days: float) -> Path:
    """What a pull by a process that has ended leaves in a cache."""
    place = cache / f"sha256-{digit * 64}"
    (place / "stores").mkdir(parents=True)
    (place / "stores" / "one").write_bytes(b"x" * 1000)
    return aged(place, days)


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".used"))


def test_what_nobody_has_used_for_long_is_removed_and_the_rest_stays(tmp_path: Path) -> None:
    old, young = copy(tmp_path, "a", 31), copy(tmp_path, "b", 29)
    other = tmp_path / "mine"
    other.mkdir()
    os.utime(other, (0, 0))
    (would,) = prune(tmp_path, 30 * DAY, dry=True).removed
    assert (would.path, would.digest) == (old, "sha256:" + "a" * 64) and old.is_dir()
    (removed,) = prune(tmp_path, 30 * DAY).removed
    assert (removed.path, removed.size) == (old, 1000) and removed.unused == pytest.approx(31 * DAY, abs=3600)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f".{young.name}.used", "mine", young.name])
    nothing = Pruned((), ())
    assert prune(tmp_path, 30 * DAY) == nothing and prune(tmp_path / "none", 0) == nothing


def test_a_copy_in_use_stays_until_its_process_has_ended(tmp_path: Path) -> None:
    path = copy(tmp_path, "a", 100)
    with used_by_another_process(path):
        aged(path, 100)
        assert prune(tmp_path, DAY).removed == ()
    aged(path, 100)
    assert len(prune(tmp_path, DAY).removed) == 1 and not path.exists()


def test_a_use_is_noted(tmp_path: Path) -> None:
    path = copy(tmp_path, "a", 100)
    with used_by_another_process(path):
        pass
    assert prune(tmp_path, DAY).removed == ()


def test_what_was_removed_cannot_be_held(tmp_path: Path) -> None:
    path = copy(tmp_path, "a", 100)
    prune(tmp_path, DAY)
    assert not hold(path)


def test_a_pull_holds_what_it_returns_and_fetches_again_what_was_pruned(bundle: Bundle, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = (
        "import sys; from pathlib import Path; from warmup.bundle.pull import pull_into_cache;"
        "from warmup.bundle.trust import Trust; pull_into_cache(sys.argv[1], Path(sys.argv[2]), Trust(anything=True))"
    )
    subprocess.run([sys.executable, "-c", code, str(bundle.root), str(cache)], check=True)
    (path,) = [one for one in cache.iterdir() if not one.name.startswith(".")]
    assert prune(cache, DAY).removed == ()
    aged(path, 2)
    assert len(prune(cache, DAY).removed) == 1
    got = pull_into_cache(str(bundle.root), cache, Trust())
    assert got.root == path
    aged(path, 2)
    assert prune(cache, DAY).removed == ()  # this process holds it
    assert pull_into_cache(str(bundle.root), cache, Trust(digest=bundle.digest)).root == path


def test_a_copy_of_which_no_use_is_known_is_as_old_as_its_directory(tmp_path: Path) -> None:
    path = copy(tmp_path, "a", 0)
    path.with_name(f".{path.name}.used").unlink()
    os.utime(path, (0, 0))
    assert len(prune(tmp_path, DAY, dry=True).removed) == len(prune(tmp_path, DAY).removed) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_killed_prunes_and_pulls_have_left_goes_too(tmp_path: Path) -> None:
    name = f"sha256-{'a' * 64}"
    for part in ("pruned", "x7_2k"):
        (tmp_path / f".{name}.partial-{part}" / "stores").mkdir(parents=True)
    put_back = tmp_path / f".sha256-{'b' * 64}.partial-x" / "replaced"
    put_back.mkdir(parents=True)  # a repair was killed between its two steps
    assert prune(tmp_path, DAY, dry=True).removed == () and len(list(tmp_path.iterdir())) == 3
    prune(tmp_path, DAY)
    assert names(tmp_path) == [f"sha256-{'b' * 64}"]


def test_a_place_that_is_being_filled_is_left_alone(tmp_path: Path) -> None:
    path = copy(tmp_path, "a", 100)
    with locked(path):
        assert prune(tmp_path, DAY).removed == () and path.is_dir()


def test_what_cannot_be_removed_stops_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = copy(tmp_path, "a", 100), copy(tmp_path, "b", 100)
    rename = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if self == bad:
            raise PermissionError(13, "Permission denied", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    found = prune(tmp_path, DAY)
    assert [one.path for one in found.removed] == [good] and "Permission denied" in found.failed[0]
    assert bad.is_dir() and not good.exists()


def test_many_prunes_and_pulls_at_once(bundle: Bundle, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def pulled(_: int) -> bool:
        return pull_into_cache(str(bundle.root), cache, Trust(digest=bundle.digest)).root.is_dir()

    with ThreadPoolExecutor(6) as pool:
        pruned = [pool.submit(prune, cache, 0.0) for _ in range(20)]
        assert all(pool.map(pulled, range(20)))
        assert not any(future.result().failed for future in pruned)


def test_a_linked_copy_can_be_held_and_is_not_pruned(tmp_path: Path) -> None:
    path = copy(tmp_path / "elsewhere", "a", 0)
    link = tmp_path / path.name
    link.symlink_to(path)
    aged(link, 100)
    with used_by_another_process(link):
        pass
    aged(link, 100)
    assert prune(tmp_path, DAY).removed == () and link.is_dir()


def test_a_copy_that_a_prune_found_in_use_was_used_then(tmp_path: Path) -> None:
    path = copy(tmp_path, "a", 0)
    with used_by_another_process(path):
        aged(path, 60)  # as if it had started so long ago
        assert prune(tmp_path, DAY).removed == ()
    assert prune(tmp_path, DAY).removed == ()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOLCK, errno.EROFS])
def test_a_copy_is_used_also_where_its_use_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = copy(tmp_path, "a", 0)

    def fails(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("warmup.bundle.prune._open_use", fails)
    assert hold(path)
    assert not hold(tmp_path / f"sha256-{'b' * 64}")


def test_files_of_copies_that_are_gone_go_too(tmp_path: Path) -> None:
    for kind in ("used", "lock"):
        (tmp_path / f".sha256-{'a' * 64}.{kind}").touch()
    prune(tmp_path, DAY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_directory_in_a_partial_copys_place_is_in_nobodys_way(
    bundle: Bundle, tmp_path: Path, linked: bool
) -> None:
    name, other = bundle.digest.replace(":", "-"), tmp_path / "other"
    other.mkdir()
    stray = tmp_path / "cache" / f".{name}.partial-x"
    stray.parent.mkdir()
    stray.symlink_to(other) if linked else stray.touch()
    assert pull_into_cache(str(bundle.root), tmp_path / "cache", Trust()).root.is_dir()
    assert not stray.is_symlink() and not stray.exists() and other.is_dir()
