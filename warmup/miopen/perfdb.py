"""A perf-db: the tuning parameters of each solver for each problem, as text or as SQLite.

Source: MIOpen ``src/include/miopen/conv/problem_description.hpp`` (``Visit``: order and names of the key's values) and
``src/include/miopen/sqlite_db.hpp``, as of 2024-10. System files are ``<base>.db.txt`` or ``<base>.db``, the user's
are ``<base>.HIP.<version>.udb.txt`` or ``<base>_1.1.0.udb``; MIOpen reads the user's over the system's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from warmup.miopen.finddb import SQLITE_MAGIC, NotADatabase, lines, name_of, read_bytes
from warmup.miopen.names import DbName, Kind
from warmup.miopen.records import inspect
from warmup.miopen.sqlitefile import integrity, opened, plain_file

# The values of a key, in the order of a text key; an SQLite ``config`` row has the same names.
COLUMNS = (
    "spatial_dim",
    "in_channels",
    "in_h",
    "in_w",
    "in_d",
    "fil_h",
    "fil_w",
    "fil_d",
    "out_channels",
    "batchsize",
    "pad_h",
    "pad_w",
    "pad_d",
    "conv_stride_h",
    "conv_stride_w",
    "conv_stride_d",
    "dilation_h",
    "dilation_w",
    "dilation_d",
    "bias",
    "group_count",
    "layout",
    "data_type",
    "direction",
)
_TEXTS = ("layout", "data_type", "direction")
_TABLES = {
    "config": "CREATE TABLE config (id INTEGER PRIMARY KEY ASC, "
    + ", ".join(f"{name} {'TEXT' if name in _TEXTS else 'INT'} NOT NULL" for name in COLUMNS)
    + ")",
    "perf_db": "CREATE TABLE perf_db (id INTEGER PRIMARY KEY ASC, solver TEXT NOT NULL, config INTEGER NOT NULL, "
    "params TEXT NOT NULL)",
}
_INDICES = (
    f"CREATE UNIQUE INDEX idx_config ON config ({', '.join(COLUMNS)})",
    "CREATE UNIQUE INDEX idx_perf_db ON perf_db (solver, config)",
)
_KEY_COLUMNS = ", ".join(f"config.{name}" for name in COLUMNS)
_ROWS = f"SELECT {_KEY_COLUMNS}, solver, params FROM perf_db JOIN config ON config.id = perf_db.config"


class PerfDb:
    """The records of one file: for each key (24 values joined by ``x``) the parameters by solver.

    ``records`` are all of them. For a text file ``data`` is its text, ``rows`` and ``dirty`` are as in ``FindDb``; for
    SQLite they are empty.
    """

    kind: Kind = "perf"

    def __init__(
        self,
        records: Mapping[str, Mapping[str, str]],
        name: DbName | None = None,
        data: bytes = b"",
        rows: Iterable[tuple[str, int, int]] = (),
    ) -> None:
        self.name, self.data = name, data
        self.records = records
        self._rows = tuple(rows)
        self.dirty = list(lines(data))

    @classmethod
    def read(cls, path: Path | str) -> PerfDb:
        """Reads a file of either form, text also compressed; raises OSError, and NotADatabase where it is neither."""
        path = Path(path)
        name = name_of(path)
        if name and not name.text and not name.bz2 and path.stat().st_size == 0:
            return cls({}, name)
        data = read_bytes(path)
        sqlite = data.startswith(SQLITE_MAGIC)
        database = cls(_read_sqlite(path, data), name) if sqlite else cls.parse(data, name)
        if not len(database) and name is None and not sqlite:
            raise NotADatabase(
                f"{path}: no line is a record of a perf-db, 24 values joined by x, then =SOLVER:PARAMETERS"
            )
        return database

    @classmethod
    def parse(cls, data: bytes, name: DbName | None = None) -> PerfDb:
        """Reads the text form. Of two lines with one key the first counts, of two parameters of a solver too."""
        records: dict[str, dict[str, str]] = {}
        rows = []
        for start, end in lines(data):
            text = data[start:end].decode("latin-1")
            key = text.partition("=")[0]
            line = inspect(text, "perf")
            if "=" in text:
                rows.append((key, start, end))
            if line.records and line.records[0].key == key:
                found = {item.solver: item.text.partition(":")[2] for item in line.records[0].items}
                records.setdefault(key, found)
        return cls(records, name, data, rows)

    def __len__(self) -> int:
        return len(self.records)

    def __contains__(self, key: object) -> bool:
        return key in self.records

    def __iter__(self) -> Iterator[str]:
        return iter(self.records)

    def get(self, key: str) -> Mapping[str, str] | None:
        """Parameters by solver, or None."""
        return self.records.get(key)

    def rows(self) -> Iterator[tuple[str, int, int]]:
        """Key, start and end of every line of a text file that has a key."""
        return iter(self._rows)

    @property
    def solvers(self) -> tuple[str, ...]:
        """The solvers that have parameters for some problem."""
        return tuple(sorted({solver for record in self.records.values() for solver in record}))

    @property
    def solutions(self) -> int:
        """How many sets of parameters there are."""
        return sum(map(len, self.records.values()))


def write_sqlite(records: Mapping[str, Mapping[str, str]], path: Path) -> None:
    """A new SQLite perf-db with MIOpen's tables; ``path`` must not exist. Raises sqlite3.Error."""
    marks = ", ".join("?" * len(COLUMNS))
    with closing(sqlite3.connect(path)) as database, database:
        for statement in (*_TABLES.values(), *_INDICES):
            database.execute(statement)
        for key, parameters in records.items():
            values = key.split("x")
            row = database.execute(f"INSERT INTO config ({', '.join(COLUMNS)}) VALUES ({marks})", values).lastrowid
            found = [(solver, row, text) for solver, text in parameters.items()]
            database.executemany("INSERT INTO perf_db (solver, config, params) VALUES (?, ?, ?)", found)


def check_sqlite(path: Path) -> list[str]:
    """What is wrong with an SQLite perf-db, in words."""
    problems = integrity(path, tuple(_TABLES))
    if problems:
        return problems
    try:
        with opened(path) as database:
            database.execute(f"{_ROWS} LIMIT 0")  # has the columns that MIOpen reads
            orphans = database.execute("SELECT count(*) FROM perf_db WHERE config NOT IN (SELECT id FROM config)")
            count = orphans.fetchone()[0]
    except sqlite3.Error as error:
        return [f"SQLite cannot read its rows: {error}"]
    return [f"{count} rows of parameters belong to no problem"] if count else []


def _read_sqlite(path: Path, data: bytes) -> dict[str, dict[str, str]]:
    records: dict[str, dict[str, str]] = {}
    try:
        with plain_file(path, data) as file, opened(file) as database:
            for *values, solver, parameters in database.execute(_ROWS):
                records.setdefault("x".join(map(str, values)), {})[solver] = parameters
    except sqlite3.Error as error:
        raise NotADatabase(f"{path} is not a perf-db that SQLite can read: {error}") from None
    return records
