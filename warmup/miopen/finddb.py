"""A find-db in memory: which solvers MIOpen timed for each problem. Values live in columns, not in objects.

Reads system, user and fusion databases, both value formats, and ``.bz2``. What is damaged is read as MIOpen would use
it: a record that makes MIOpen fail counts as absent, and of two records of a key the first is the one. ``damage`` says
what is wrong, ``repair`` mends it.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warmup.miopen.names import DbName, DbNameError, Kind
from warmup.miopen.records import ALGORITHMS, Item, inspect
from warmup.miopen.records import Solution as Solution
from warmup.miopen.scan import ALGORITHM_NAMES, Columns, Names, chunks, scan
from warmup.miopen.writing import refuse_special

BZ2_MAGIC, SQLITE_MAGIC = b"BZh", b"SQLite format 3\0"


class NotADatabase(ValueError):
    """A file in which nothing is what its kind of database holds."""


@dataclass(frozen=True)
class _Row:
    """A line that the fast reading left: its place, the key it takes, and what MIOpen can use of it, if anything."""

    start: int
    end: int
    key: str
    items: tuple[Item, ...]


class FindDb:
    """The records of one file.

    ``data`` is the file's text, decompressed, and all offsets are into it. ``dirty`` are the (start, end) of the lines
    that the fast reading could not take. ``name`` is what the file's name says, None where it is not MIOpen's.
    """

    def __init__(self, data: bytes, kind: Kind = "find", name: DbName | None = None) -> None:
        self.data = data
        self.kind: Kind = kind
        self.name = name
        numbers = Names()
        clean = [scan(chunk, offset, numbers) for offset, chunk in chunks(data)] if kind == "find" else []
        self.dirty = [span for columns in clean for span in columns.dirty] if kind == "find" else list(lines(data))
        rest = [row for span in self.dirty if (row := _row(data, *span, kind))]
        self._assemble(clean, rest, numbers)

    @classmethod
    def read(cls, path: Path | str, kind: Kind | None = None) -> FindDb:
        """Reads a file, compressed or not; ``kind`` find or fusion, by default what the file's name says, else find.

        Raises OSError, and NotADatabase where no line is a record and neither ``kind`` nor the name says that it is
        one. An empty file is a database without records: MIOpen leaves one behind after a failed Find.
        """
        path = Path(path)
        name = name_of(path)
        data = read_bytes(path)
        if data.startswith(SQLITE_MAGIC):
            raise NotADatabase(f"{path} is SQLite, not a find-db")
        database = cls(data, kind or (name.kind if name and name.kind == "fusion" else "find"), name)
        if not len(database) and kind is None and name is None:
            raise NotADatabase(f"{path}: no line is a record of a find-db, KEY=SOLVER:TIME,WORKSPACE,ALGORITHM")
        return database

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[str]:
        """The keys, in the order of the file."""
        return iter(self._rows)

    def get(self, key: str) -> tuple[Solution, ...] | None:
        """The solvers of a record, fastest first, or None; the file has them in any order.

        A time of 0 is kept as found: shipped databases hold some, and MIOpen takes such a solver before all others.
        """
        return self[key] if key in self._rows else None

    def __getitem__(self, key: str) -> tuple[Solution, ...]:
        """As ``get``, for a key that is there; never empty."""
        row = self._rows[key]
        found = [self._solution(item) for item in range(self._first[row], self._first[row + 1])]
        return tuple(sorted(found, key=lambda solution: solution.time_ms))

    def items(self) -> Iterator[tuple[str, tuple[Solution, ...]]]:
        """All keys and what ``get`` gives for them."""
        for key in self:
            yield key, self[key]

    def line(self, key: str) -> str | None:
        """The record's line as it is in the file, without its newline."""
        row = self._rows.get(key)
        return None if row is None else self.data[self._start[row] : self._end[row]].decode("latin-1")

    def rows(self) -> Iterator[tuple[str, int, int]]:
        """Key, start and end of every line that takes a key, in the order of the file; a key may be there twice."""
        return zip(self._keys, self._start.tolist(), self._end.tolist(), strict=True)

    def lines_of(self, solvers: set[str]) -> list[tuple[int, int]]:
        """The (start, end) of all lines that name one of the solvers."""
        numbers = [number for number, name in enumerate(self._names) if name in solvers]
        items = np.flatnonzero(np.isin(self._solver, numbers))
        rows = np.unique(np.searchsorted(self._first, items, side="right") - 1)
        return [(int(self._start[row]), int(self._end[row])) for row in rows]

    def lines_against_direction(self) -> list[tuple[int, int]]:
        """The (start, end) of all lines with an algorithm that MIOpen does not know under the direction of the key."""
        directions = np.array([ord(ALGORITHMS[name]) for name in ALGORITHM_NAMES])
        keyed = np.array([ord(key.rpartition("-")[2][:1] or " ") for key in self._keys], np.int64)
        wrong = directions[self._algorithm] != np.repeat(keyed, np.diff(self._first))
        rows = np.unique(np.searchsorted(self._first, np.flatnonzero(wrong), side="right") - 1)
        return [(int(self._start[row]), int(self._end[row])) for row in rows]

    @property
    def solvers(self) -> tuple[str, ...]:
        """The solvers that are in some record."""
        return tuple(sorted(self._names[number] for number in np.unique(self._solver).tolist()))

    @property
    def solutions(self) -> int:
        """How many solvers all records have together."""
        return len(self._solver)

    @property
    def zero_times(self) -> int:
        """How many of these have a time of 0."""
        return int((self._time_ms == 0).sum())

    @property
    def format(self) -> str:
        """``2.0``, ``1.0``, or ``1.0 and 2.0`` where a file has items of both; ``2.0`` for an empty file."""
        if not self._legacy_items:
            return "2.0"
        return "1.0" if self._legacy_items == self.solutions else "1.0 and 2.0"

    def _solution(self, item: int) -> Solution:
        return Solution(
            self._names[self._solver[item]],
            float(self._time_ms[item]),
            int(self._workspace[item]),
            ALGORITHM_NAMES[self._algorithm[item]],
        )

    def _assemble(self, clean: list[Columns], rest: list[_Row], numbers: Names) -> None:
        """Joins the chunks and the rows that were read slowly, in the order of the file."""
        found = [item.solution for row in rest for item in row.items if item.solution]
        solver = _joined([c.solver for c in clean], [numbers[s.solver] for s in found], np.int32)
        time_ms = _joined([c.time_ms for c in clean], [s.time_ms for s in found], np.float64)
        workspace = _joined([c.workspace for c in clean], [s.workspace for s in found], np.int64)
        algorithm = _joined([c.algorithm for c in clean], [ALGORITHM_NAMES.index(s.algorithm) for s in found], np.int8)
        counts = _joined([c.row_items for c in clean], [len(row.items) for row in rest], np.int64)
        start = _joined([c.row_start for c in clean], [row.start for row in rest], np.int64)
        end = _joined([c.row_end for c in clean], [row.end for row in rest], np.int64)
        keys = [key for columns in clean for key in columns.keys] + [row.key for row in rest]
        if rest:
            order = np.argsort(start, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            items = np.argsort(np.repeat(rank, counts), kind="stable")
            solver, time_ms, workspace, algorithm = (a[items] for a in (solver, time_ms, workspace, algorithm))
            counts, start, end = counts[order], start[order], end[order]
            keys = [keys[row] for row in order.tolist()]
        self._names = tuple(numbers)
        self._legacy_items = sum(c.legacy_items for c in clean) + sum(_is_legacy(i) for row in rest for i in row.items)
        self._keys, self._start, self._end = keys, start, end
        self._first = np.concatenate(([0], np.cumsum(counts)))
        self._solver, self._time_ms, self._workspace, self._algorithm = solver, time_ms, workspace, algorithm
        self._rows: dict[str, int] = {}
        for row, key in enumerate(keys):
            self._rows.setdefault(key, row)
        # A line that takes its key without giving anything: MIOpen finds it first and misses or fails.
        for row in np.flatnonzero(counts == 0).tolist():
            if self._rows.get(keys[row]) == row:
                del self._rows[keys[row]]


def name_of(path: Path) -> DbName | None:
    """What a file's name says, or None where it is not one of MIOpen's."""
    try:
        return DbName.parse(path.name)
    except DbNameError:
        return None


def read_bytes(path: Path) -> bytes:
    """The bytes of a database, decompressed if need be; raises NotADatabase for broken bzip2, SpecialFile, OSError."""
    refuse_special(path)
    with path.open("rb") as file:
        magic = file.read(len(BZ2_MAGIC))
        file.seek(0)
        if magic != BZ2_MAGIC:
            return file.read()
        try:
            with bz2.open(file) as stream:
                return stream.read()
        except (OSError, EOFError) as error:
            raise NotADatabase(f"{path} is cut or damaged bzip2: {error}") from None


def lines(data: bytes) -> Iterator[tuple[int, int]]:
    """The (start, end) of every line that is not empty, without its newline."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if end > start:
            yield start, end
        start = end + 1


def _row(data: bytes, start: int, end: int, kind: Kind) -> _Row | None:
    """What MIOpen makes of a line that is not clean; None where it takes no key."""
    text = data[start:end].decode("latin-1")
    line = inspect(text, kind)
    key = text.partition("=")[0]
    if not key or "=" not in text:
        return None
    # Only the first of two glued records is ever looked for, and neither can be used.
    items = line.records[0].items if line.usable and line.records else ()
    return _Row(start, end, key, items)


def _is_legacy(item: Item) -> bool:
    return item.text.partition(":")[0] in ALGORITHMS


def _joined(arrays: list[np.ndarray], rest: list, dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *arrays, np.array(rest, dtype)]).astype(dtype, copy=False)
