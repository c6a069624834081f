from __future__ import annotations

import bz2
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.miopen.describe import describe
from warmup.miopen.files import databases_in, kind_of, misnamed, read_database
from warmup.miopen.finddb import FindDb, NotADatabase
from warmup.miopen.kernelcache import write
from warmup.miopen.perfdb import PerfDb, write_sqlite

from .conftest import FORWARD, SOUND, USER_NAME
from .test_kernelcache import kernel
from .test_perfdb import RECORDS, TEXT


def test_a_kind_is_told_by_the_name_or_else_by_the_content(database: Callable[..., Path], tmp_path: Path) -> None:
    write_sqlite(RECORDS, tmp_path / "c")
    write(tmp_path / "d", [kernel("a.o", b"one")])
    assert kind_of(database("", "gfx942130.HIP.3_4_0_.fusion.ufdb.txt")) == "fusion"
    assert kind_of(database("garbage\n" + SOUND, "a")) == "find"
    assert kind_of(database(bz2.compress(TEXT.encode()), "b")) == "perf"
    assert kind_of(tmp_path / "c") == "perf"
    assert kind_of(tmp_path / "d") == "kernels"


@pytest.mark.parametrize("content", [b"", b"hello", b"a=b\n", b"BZhello", b"SQLite format 3\0", b"\0" * 100])
def test_a_file_of_neither_is_refused(database: Callable[..., Path], content: bytes) -> None:
    with pytest.raises(NotADatabase, match="thing"):
        kind_of(database(content, "thing"))


def test_companions_are_not_listed(database: Callable[..., Path], tmp_path: Path) -> None:
    names = (
        "gfx942130.HIP.3_4_0_.fusion.ufdb.txt",
        USER_NAME,
        "gfx942130.HIP.fdb.txt.bz2",
        "gfx942130.db",
        "odd.ufdb.txt",
    )
    for name in names:
        database("", name)
    for ending in (".time", ".temp", ".lock", ".set-aside", ".set-aside.1"):
        database("", USER_NAME + ending)
    database("", "gfx942130.ukdb-wal")
    database("", "keys.tsv")
    assert {path.name for path in databases_in(tmp_path)} == set(names)


def test_a_database_is_read_by_its_kind(database: Callable[..., Path], tmp_path: Path) -> None:
    assert isinstance(read_database(database(SOUND, "a")), FindDb)
    assert isinstance(read_database(database(TEXT, "b")), PerfDb)
    assert len(read_database(database(""))) == 0
    write(tmp_path / "gfx942130.ukdb", [])
    with pytest.raises(NotADatabase, match="expected a find-db or a perf-db"):
        read_database(tmp_path / "gfx942130.ukdb")
    assert len(read_database(database(f"{FORWARD}=\n", "gfx90a68.HIP.3_4_0_.ufdb.txt"))) == 0
    with pytest.raises(NotADatabase, match="no line of it begins with a key"):
        read_database(database("garbage\n", "gfx90a68.HIP.3_4_0_.ufdb.txt"))


def test_a_name_that_miopen_would_not_make_is_told() -> None:
    assert misnamed(Path(USER_NAME)) is None
    assert misnamed(Path("notes.txt")) is None
    assert misnamed(Path("gfx110136.HIP.fdb.txt")) is None  # shipped so by newer versions
    assert "gfx942130" in (misnamed(Path("gfx942_304.HIP.3_4_0_.ufdb.txt")) or "")


def test_the_facts_of_a_file(database: Callable[..., Path], tmp_path: Path) -> None:
    facts = describe(database(SOUND + "#\n"))
    assert {name: facts[name] for name in ("kind", "arch", "cu_count", "version", "hash", "format", "records")} == {
        "kind": "find",
        "arch": "gfx942",
        "cu_count": 304,
        "version": "3.4.0",
        "hash": "",
        "format": "2.0",
        "records": 4,
    }
    assert (facts["solutions"], facts["solvers"], facts["damaged_lines"]) == (6, 5, 1)
    assert facts["bytes"] == len(SOUND) + 2
    write(tmp_path / "gfx942130.ukdb", [kernel("a.o", b"one")])
    assert describe(tmp_path / "gfx942130.ukdb")["records"] == 1
    unnamed = describe(database(TEXT, "b"))
    assert (unnamed["kind"], unnamed["format"], unnamed["arch"], unnamed["version"]) == ("perf", "text", None, None)
