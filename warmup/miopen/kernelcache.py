"""The kernel cache: compiled code objects by file name and compiler arguments, in SQLite.

Each code object is compressed with bzip2, and its row has the MD5 and the size of what it was before. The key is exact:
one other compiler flag is another row, so that a program which tuning compiled may be compiled again for serving.
Source: MIOpen ``src/include/miopen/kern_db.hpp``, as of 2024-10; observed on MIOpen 3.4.0.
"""

from __future__ import annotations

import bz2
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from warmup.miopen.finddb import NotADatabase
from warmup.miopen.sqlitefile import integrity, opened, tables

TABLE = "kern_db"
_CREATE = (
    "CREATE TABLE kern_db (id INTEGER PRIMARY KEY ASC, kernel_name TEXT NOT NULL, kernel_args TEXT NOT NULL, "
    "kernel_blob BLOB NOT NULL, kernel_hash TEXT NOT NULL, uncompressed_size INT NOT NULL)",
    "CREATE UNIQUE INDEX idx_kern_db ON kern_db (kernel_name, kernel_args)",
)
_COLUMNS = "kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size"


@dataclass(frozen=True)
class Kernel:
    """One row: ``blob`` is compressed; ``digest`` (MD5, hex) and ``size`` in bytes are of the code object itself."""

    name: str
    arguments: str
    blob: bytes
    digest: str
    size: int

    @property
    def key(self) -> tuple[str, str]:
        """What MIOpen looks a program up by."""
        return self.name, self.arguments

    def fault(self) -> str | None:
        """Why MIOpen could not use the row, or None."""
        if not isinstance(self.blob, bytes):
            return f"kernel {self.name!r} has no code object"
        try:
            code = bz2.decompress(self.blob)
        except (OSError, ValueError) as error:
            return f"kernel {self.name!r} cannot be decompressed: {error}"
        if hashlib.md5(code, usedforsecurity=False).hexdigest() != self.digest:
            return f"kernel {self.name!r} has another MD5 than its row says"
        if len(code) != self.size:
            return f"kernel {self.name!r} has {len(code)} bytes, its row says {self.size}"
        return None


def kernels(path: Path) -> Iterator[Kernel]:
    """All rows of a cache; raises NotADatabase where SQLite cannot read it or it has no such table."""
    if path.stat().st_size == 0:
        return
    if TABLE not in tables(path):
        raise NotADatabase(f"{path} is not a kernel cache: SQLite finds no table {TABLE} in it")
    try:
        with opened(path) as database:
            for row in database.execute(f"SELECT {_COLUMNS} FROM {TABLE} ORDER BY id"):
                yield Kernel(*row)
    except sqlite3.Error as error:
        raise NotADatabase(f"{path} is a damaged kernel cache: {error}") from None


def digests(path: Path) -> dict[tuple[str, str], str]:
    """The MD5 of each program by name and arguments, without reading any code object; raises NotADatabase."""
    if path.stat().st_size == 0:
        return {}
    try:
        with opened(path) as database:
            rows = database.execute(f"SELECT kernel_name, kernel_args, kernel_hash FROM {TABLE}").fetchall()
    except sqlite3.Error as error:
        raise NotADatabase(f"{path} is not a kernel cache that SQLite can read: {error}") from None
    return {(name, arguments): digest for name, arguments, digest in rows}


def write(path: Path, rows: Iterable[Kernel]) -> None:
    """A new cache with these rows; ``path`` must not exist. Of two rows with one key the first stays."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode=WAL")  # as MIOpen, whose first use would change the file otherwise
        for statement in _CREATE:
            database.execute(statement)
        database.executemany(
            f"INSERT OR IGNORE INTO {TABLE} ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
            ((row.name, row.arguments, row.blob, row.digest, row.size) for row in rows),
        )


def add(path: Path, rows: Iterable[Kernel]) -> int:
    """Adds the rows that a cache lacks, all or none, and returns their number; a row that is there already stays.

    Costs what the new rows cost, however large the cache is. Raises sqlite3.Error.
    """
    with closing(sqlite3.connect(path)) as database, database:
        before = database.total_changes
        database.executemany(
            f"INSERT OR IGNORE INTO {TABLE} ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
            ((row.name, row.arguments, row.blob, row.digest, row.size) for row in rows),
        )
        return database.total_changes - before


def check(path: Path) -> list[str]:
    """What is wrong with a cache, in words: with the file first, then row by row."""
    if path.stat().st_size == 0:
        return []
    problems = integrity(path, (TABLE,))
    if TABLE in tables(path):
        try:
            with opened(path) as database:
                database.execute(f"SELECT {_COLUMNS} FROM {TABLE} LIMIT 0")
        except sqlite3.Error as error:
            return [*problems, f"SQLite cannot read its rows: {error}"]
        problems += [fault for row in salvage(path) if (fault := row.fault())]
    return problems


def salvage(path: Path) -> Iterator[Kernel]:
    """The rows that SQLite can still read, one by one, so that a broken page costs only the rows on it."""
    try:
        with opened(path) as database:
            last = database.execute(f"SELECT max(id) FROM {TABLE}").fetchone()[0] or 0
            for number in range(1, last + 1):
                try:
                    row = database.execute(f"SELECT {_COLUMNS} FROM {TABLE} WHERE id = ?", (number,)).fetchone()
                except sqlite3.DatabaseError:
                    continue
                if row:
                    yield Kernel(*row)
    except sqlite3.DatabaseError:
        return
