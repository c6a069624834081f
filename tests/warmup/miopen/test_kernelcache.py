from __future__ import annotations

import bz2
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from warmup.miopen.finddb import NotADatabase
from warmup.miopen.kernelcache import Kernel, check, digests, kernels, salvage, write


def kernel(name: str, code: bytes, arguments: str = " -mcpu=gfx942", digest: str = "") -> Kernel:
    digest = digest or hashlib.md5(code).hexdigest()
    return Kernel(name, arguments, bz2.compress(code), digest, len(code))


def test_a_cache_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "gfx942130.ukdb"
    rows = [kernel("a.o", b"code" * 99), kernel("a.o", b"other", " -O3 -mcpu=gfx942")]
    write(path, rows)
    assert list(kernels(path)) == rows
    assert check(path) == []
    assert digests(path) == {row.key: row.digest for row in rows}


def test_of_two_rows_of_one_key_the_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.ukdb"
    write(path, [kernel("a.o", b"first"), kernel("a.o", b"second")])
    assert [bz2.decompress(row.blob) for row in kernels(path)] == [b"first"]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (kernel("a.o", b"code", digest="0" * 32), "another MD5"),
        (Kernel("a.o", "", b"not bzip2", "", 4), "cannot be decompressed"),
        (Kernel("a.o", "", bz2.compress(b"code"), hashlib.md5(b"code").hexdigest(), 5), "has 4 bytes, its row says 5"),
        (Kernel("a.o", "", "text", "", 4), "no code object"),  # type: ignore[arg-type]
    ],
)
def test_each_fault_of_a_row_is_told(tmp_path: Path, row: Kernel, fault: str) -> None:
    path = tmp_path / "a.ukdb"
    write(path, [kernel("b.o", b"fine"), row])
    (found,) = check(path)
    assert fault in found
    assert "'a.o'" in found


def test_a_cache_that_miopen_still_has_open_is_read_with_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "a.ukdb"
    write(path, [kernel("a.o", b"one")])
    with closing(sqlite3.connect(path)) as live:
        live.execute("PRAGMA journal_mode=WAL")
        row = kernel("b.o", b"two")
        live.execute(
            "INSERT INTO kern_db (kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size) "
            "VALUES (?, ?, ?, ?, ?)",
            (row.name, row.arguments, row.blob, row.digest, row.size),
        )
        live.commit()
        assert (tmp_path / "a.ukdb-wal").stat().st_size > 0
        assert len(digests(path)) == 2


def test_a_broken_page_costs_only_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.ukdb"
    rows = [kernel(f"{number}.o", hashlib.sha256(bytes([number])).digest() * 200) for number in range(40)]
    write(path, rows)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    assert check(path)
    saved = [row for row in salvage(path) if row.fault() is None]
    assert 0 < len(saved) < len(rows)
    assert set(saved) < set(rows)


def test_an_empty_file_is_a_cache_without_kernels(tmp_path: Path) -> None:
    path = tmp_path / "a.ukdb"
    path.touch()
    assert (list(kernels(path)), digests(path), check(path)) == ([], {}, [])


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ukdb"
    path.write_bytes(b"SQLite format 3\0 not really")
    with pytest.raises(NotADatabase):
        list(kernels(path))
    with pytest.raises(NotADatabase):
        digests(path)
    assert "SQLite cannot read it" in check(path)[0]
    assert list(salvage(path)) == []
