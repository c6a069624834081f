from __future__ import annotations

import bz2
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

from warmup.miopen import kernelcache
from warmup.miopen.contents import Watch, entries


def add_kernel(root: Path, name: str) -> None:
    """Writes as MIOpen does: into a cache that keeps its new rows in a log while it is open."""
    path = root / "cache" / "gfx942130.ukdb"
    if not path.exists():
        kernelcache.write(path, ())
    digest = hashlib.md5(b"code", usedforsecurity=False).hexdigest()
    kernelcache.add(path, [kernelcache.Kernel(name, "-O3", bz2.compress(b"code"), digest, 4)])


def store(tmp_path: Path) -> Path:
    (tmp_path / "db").mkdir()
    (tmp_path / "cache").mkdir()
    return tmp_path


def test_a_watch_names_what_was_added_or_changed_since_it_last_looked(tmp_path):
    root = store(tmp_path)
    database = root / "db" / "gfx942130.HIP.3_4_0_.ufdb.txt"
    database.write_text("a=GemmFwdRest:1,0,x\n")
    watch = Watch(root)
    assert watch.added() == []
    with database.open("a") as file:
        file.write("b=GemmFwdRest:1,0,x\n")
    add_kernel(root, "naive.o")
    assert watch.added() == ["find:b", "kernel:naive.o -O3"]
    assert watch.added() == []
    database.write_text("a=GemmFwdRest:2,0,x\nb=GemmFwdRest:1,0,x\n")
    assert watch.added() == ["find:a"]


def test_looking_leaves_no_trace(tmp_path):
    root = store(tmp_path)
    add_kernel(root, "naive.o")
    before = {path.name: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert list(entries(root)) == ["kernel:naive.o -O3"]
    assert {path.name: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_rows_that_are_still_in_the_log_count(tmp_path):
    root = store(tmp_path)
    add_kernel(root, "naive.o")
    with closing(sqlite3.connect(root / "cache" / "gfx942130.ukdb")) as writer:
        writer.execute("UPDATE kern_db SET kernel_name = 'other.o'")
        writer.commit()
        assert (root / "cache" / "gfx942130.ukdb-wal").stat().st_size
        assert list(entries(root)) == ["kernel:other.o -O3"]


def test_the_first_of_two_records_with_one_key_counts_and_lines_without_key_do_not(tmp_path):
    root = store(tmp_path)
    (root / "db" / "gfx942130.HIP.3_4_0_.ufdb.txt").write_text("a=first\nnot a record\na=second\n")
    assert entries(root) == {"find:a": "first"}


def test_caches_in_a_directory_of_their_version_are_found(tmp_path):
    root = store(tmp_path)
    (root / "cache" / "3.5.1.76e3cde91").mkdir()
    add_kernel(root, "naive.o")
    path = root / "cache" / "gfx942130.ukdb"
    path.rename(root / "cache" / "3.5.1.76e3cde91" / path.name)
    assert list(entries(root)) == ["kernel:naive.o -O3"]
