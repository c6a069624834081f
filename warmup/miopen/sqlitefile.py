"""MIOpen's SQLite files, read without touching them."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection; where the directory cannot be written, one that ignores an unfinished journal.

    A database in WAL mode, as MIOpen keeps it, needs a shared-memory file beside it even to be read; a reader leaves
    that and an empty log behind. Where no log has anything in it, the file is whole and is read by itself.
    """
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    log = path.with_name(f"{path.name}-wal")
    whole = not log.exists() or not log.stat().st_size
    connection = sqlite3.connect(f"{address}&immutable=1" if whole else address, uri=True)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        connection = sqlite3.connect(address + "&immutable=1", uri=True)
    with closing(connection):
        yield connection


@contextmanager
def plain_file(path: Path, data: bytes) -> Iterator[Path]:
    """``path`` itself where it holds ``data``; else, for what was compressed in it, a file for as long as the block."""
    if path.stat().st_size == len(data):
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


def tables(path: Path) -> set[str]:
    """The names of the tables in a file; empty where SQLite cannot read it."""
    try:
        with opened(path) as database:
            return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return set()


def integrity(path: Path, expected: tuple[str, ...]) -> list[str]:
    """What SQLite itself finds wrong, and which of the expected tables are missing."""
    try:
        with opened(path) as database:
            missing = [name for name in expected if name not in tables(path)]
            found = [text for (text,) in database.execute("PRAGMA integrity_check") if text != "ok"]
    except sqlite3.Error as error:
        return [f"SQLite cannot read it: {error}"]
    return [f"there is no table {name}" for name in missing] + found
