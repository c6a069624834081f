from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from warmup.miopen.writing import DbLocked, free_name, lock_paths, locked, write_atomically

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_is_where_miopen_has_it(tmp_path: Path) -> None:
    database = tmp_path / "db" / "gfx942130.HIP.3_4_0_.ufdb.txt"
    digest = hashlib.md5(str(database.parent).encode()).hexdigest()
    expected = tmp_path / "miopen-lockfiles" / f"{digest}_{database.name}.lock"
    assert lock_paths(database, tmp_path) == [expected]


def test_a_later_version_has_it_beside_the_database(tmp_path: Path) -> None:
    (tmp_path / "miopen-lockfiles").mkdir()
    beside = tmp_path / "miopen-lockfiles" / "a.ufdb.txt.lock"
    assert lock_paths(tmp_path / "a.ufdb.txt", tmp_path / "elsewhere")[1:] == [beside]


def test_the_temporary_directory_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert lock_paths(Path("/var/db/a"))[0].parent == tmp_path / "miopen-lockfiles"


def test_the_lock_excludes_other_processes_and_is_open_to_all_users(tmp_path: Path) -> None:
    database = tmp_path / "db" / "a.ufdb.txt"
    with locked(database, temp_dir=tmp_path):
        pass
    (lock,) = lock_paths(database, tmp_path)
    assert lock.stat().st_size == 0
    assert lock.stat().st_mode & 0o777 == 0o777
    assert lock.parent.stat().st_mode & 0o777 == 0o777
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with (
            pytest.raises(DbLocked, match="locked by another process"),
            locked(database, temp_dir=tmp_path, wait_s=0.1),
        ):
            pytest.fail("the lock was given twice")
    with locked(database, temp_dir=tmp_path, wait_s=5):
        pass


def test_the_lock_is_given_back_after_an_error(tmp_path: Path) -> None:
    database = tmp_path / "a.ufdb.txt"
    with pytest.raises(RuntimeError), locked(database, temp_dir=tmp_path):
        raise RuntimeError
    with locked(database, temp_dir=tmp_path, wait_s=0):
        pass


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    write_atomically(path, [b"new", b"er"])
    assert path.read_bytes() == b"newer"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def parts():
        yield b"half"
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        write_atomically(path, parts())
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, [b"new"])
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_what_was_set_aside_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.set-aside"
    assert free_name(path) == path
    path.touch()
    (tmp_path / "a.set-aside.1").touch()
    assert free_name(path).name == "a.set-aside.2"
