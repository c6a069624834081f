from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from warmup.miopen.finddb import NotADatabase
from warmup.miopen.perfdb import COLUMNS, PerfDb, check_sqlite, write_sqlite
from warmup.miopen.problem import ConvProblem

KEY = "2x64x56x56x1x3x3x1x64x16x1x1x0x1x1x0x1x1x0x0x1xNCHWxFP32xF"
RECORDS = {
    KEY: {"ConvOclDirectFwd": "16,16,32,32,2,2,8,2,1", "ConvAsm3x3U": "0,1"},
    KEY[:-1] + "B": {"ConvAsm3x3U": "7"},
}
TEXT = f"{KEY}=ConvOclDirectFwd:16,16,32,32,2,2,8,2,1;ConvAsm3x3U:0,1\n{KEY[:-1]}B=ConvAsm3x3U:7\n"


def test_a_text_and_an_sqlite_file_say_the_same(database: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "gfx942130_1.1.0.udb"
    write_sqlite(RECORDS, path)
    for found in (PerfDb.read(path), PerfDb.read(database(TEXT, "gfx942130.HIP.3_4_0_.udb.txt"))):
        assert found.records == RECORDS
        assert (len(found), found.solutions, found.solvers) == (2, 3, ("ConvAsm3x3U", "ConvOclDirectFwd"))
        assert found.get(KEY) == RECORDS[KEY]
        assert KEY in found and found.get("2x1") is None


def test_the_columns_are_those_of_a_problem() -> None:
    problem = ConvProblem.from_find_db_key("64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F")
    assert len(COLUMNS) == len(problem.perf_db_fields()) == 24
    assert problem.perf_db_key() == KEY


def test_of_two_lines_the_first_counts() -> None:
    assert PerfDb.parse(f"{KEY}=A:1;A:2\n{KEY}=A:3\n".encode()).records == {KEY: {"A": "1"}}


def test_an_empty_user_database_has_no_records(database: Callable[..., Path]) -> None:
    assert len(PerfDb.read(database("", "gfx942130_1.1.0.udb"))) == 0
    assert len(PerfDb.read(database("", "gfx942130.HIP.3_4_0_.udb.txt"))) == 0


@pytest.mark.parametrize("content", [b"hello\n", b"SQLite format 3\0" + b"x" * 200])
def test_another_file_is_refused(database: Callable[..., Path], content: bytes) -> None:
    with pytest.raises(NotADatabase):
        PerfDb.read(database(content, "some.file"))


def test_parameters_of_no_problem_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    write_sqlite(RECORDS, path)
    assert check_sqlite(path) == []
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM config WHERE direction = 'B'")
    assert check_sqlite(path) == ["1 rows of parameters belong to no problem"]
    path.write_bytes(path.read_bytes()[:1500])
    assert "SQLite cannot read it" in check_sqlite(path)[0] or check_sqlite(path)


def test_the_shipped_database_is_read_whole(shipped: Path) -> None:
    database = PerfDb.read(shipped / "gfx942130.db.bz2")
    assert (len(database), database.solutions) == (9393, 21058)
