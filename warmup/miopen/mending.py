"""Repair and merge of database files: what is written is written at once, and what does not go into it is set aside.

Sources are never changed. A text database that a live MIOpen may be writing is read and replaced under MIOpen's lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from warmup.miopen import kernelcache
from warmup.miopen.files import kind_of, read_database
from warmup.miopen.finddb import FindDb, NotADatabase, name_of
from warmup.miopen.merge import Conflict, MergeRefused, join_find, join_perf, one_target
from warmup.miopen.names import Kind
from warmup.miopen.perfdb import PerfDb, write_sqlite
from warmup.miopen.repair import Mended, mend
from warmup.miopen.writing import free_name, lock_paths, locked, new_file, refuse_special, write_atomically


@dataclass(frozen=True)
class RepairReport:
    """What a repair did; ``aside`` is the file with what could not be saved, None where there was nothing.

    ``records`` is what the new file holds, ``saved`` how many of these came out of damaged lines, and ``lost`` how many
    parts were set aside.
    """

    records: int
    saved: int
    lost: int
    aside: Path | None


@dataclass(frozen=True)
class MergeFilesReport:
    """What a merge did: records of the first source, records that others added, records of the first that improved.

    ``aside`` are the files with what was damaged in a source.
    """

    records: int
    present: int
    added: int
    improved: int
    conflicts: tuple[Conflict, ...]
    aside: tuple[Path, ...]


def repair_file(path: Path, out: Path) -> RepairReport:
    """Writes a mended copy of ``path`` to ``out``, which may be the same file. Raises NotADatabase, OSError.

    Beside ``out``, in ``<out>.set-aside``, is everything that is not in the copy, with the reason.
    """
    refuse_special(out)
    kind = kind_of(path)
    if kind == "kernels":
        return _repair_kernels(path, out)
    with _quiet(path, out):
        database = PerfDb.read(path) if kind == "perf" else FindDb.read(path, kind)
        if isinstance(database, PerfDb) and not database.data:
            return _repair_sqlite(database, out)
        mended = mend(database)
        aside = _set_aside(mended, out)
        write_atomically(out, [mended.data])
    count = len(PerfDb.parse(mended.data) if kind == "perf" else FindDb(mended.data, kind))
    return RepairReport(count, mended.saved, len(mended.aside), aside)


def merge_files(out: Path, sources: Sequence[Path], *, force: bool = False) -> MergeFilesReport:
    """Joins databases of one kind into ``out``, which may be among the sources and is replaced.

    Raises MergeRefused where names say that they are of different devices or versions, unless ``force``; NotADatabase;
    OSError. A source without records is taken for what it is.
    """
    for path in (out, *sources):
        refuse_special(path)
    kinds: dict[Path, Kind] = {source: _kind(source, out) for source in sources}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{path.name} is {kind}" for path, kind in kinds.items())
        raise MergeRefused(f"databases of different kinds: {told}")
    if not force:
        one_target([name_of(path) for path in (*sources, out)])
    kind = kinds[sources[0]]
    if kind == "kernels":
        return _merge_kernels(out, sources)
    with _quiet(out, *sources):
        if kind == "perf":
            return _merge_perf(out, sources)
        found, aside = [], []
        for path in sources:
            database = FindDb.read(path, kind) if path.stat().st_size == 0 else _find(path, kind)
            mended = mend(database)
            found.append(database if mended.data is database.data else FindDb(mended.data, kind))
            aside += [_set_aside(mended, out)]
        joined = join_find(found, list(map(str, sources)))
        write_atomically(out, joined.lines)
    kept = tuple(path for path in aside if path)
    return MergeFilesReport(len(joined.lines), joined.present, joined.added, joined.improved, joined.conflicts, kept)


def _find(path: Path, kind: Kind) -> FindDb:
    database = read_database(path, kind)
    assert isinstance(database, FindDb)
    return database


def _kind(path: Path, out: Path) -> Kind:
    """The kind of a source; an empty file is of the kind that the output is named for."""
    named = name_of(out)
    if path.stat().st_size == 0 and name_of(path) is None and named:
        return named.kind
    return kind_of(path)


@contextmanager
def _quiet(out: Path, *sources: Path) -> Iterator[None]:
    """Holds MIOpen's locks of the output, and of those sources for which some process has made a lock file."""
    taken: set[Path] = set()
    with ExitStack() as stack:
        for path in sorted({out.absolute(), *(source.absolute() for source in sources)}):
            name = name_of(path)
            locks = set(lock_paths(path))
            needed = path == out.absolute() or any(lock.exists() for lock in locks)
            if name and name.scope == "user" and name.text and needed and not taken & locks:
                stack.enter_context(locked(path))
                taken |= locks
        yield


def _set_aside(mended: Mended, out: Path) -> Path | None:
    if not mended.aside:
        return None
    path = free_name(out.with_name(f"{out.name}.set-aside"))
    write_atomically(path, [mended.aside_text])
    return path


def _replace_sqlite(out: Path, write: Callable[[Path], None]) -> None:
    """Puts a new SQLite file in place; journals of the file that was there are not of the new one."""
    with new_file(out) as temporary:
        try:
            write(temporary)
        except sqlite3.OperationalError as error:  # no directory, no room, no permission
            raise OSError(f"{out}: {error}") from error
    for ending in ("-wal", "-shm", "-journal"):
        out.with_name(out.name + ending).unlink(missing_ok=True)


def _repair_kernels(path: Path, out: Path) -> RepairReport:
    rows = list(kernelcache.salvage(path)) if path.stat().st_size else []
    good = [row for row in rows if row.fault() is None]
    faults = kernelcache.check(path)
    aside = None
    if faults:
        # The damaged file itself: what SQLite cannot read may still be in its pages.
        aside = free_name(out.with_name(f"{out.name}.set-aside"))
        write_atomically(aside, [path.read_bytes()])
    _replace_sqlite(out, lambda temporary: kernelcache.write(temporary, good))
    return RepairReport(len(good), 0, len(faults), aside)


def _repair_sqlite(database: PerfDb, out: Path) -> RepairReport:
    _replace_sqlite(out, lambda temporary: write_sqlite(database.records, temporary))
    return RepairReport(len(database), 0, 0, None)


def _merge_perf(out: Path, sources: Sequence[Path]) -> MergeFilesReport:
    found, aside = [], []
    for path in sources:
        database = PerfDb.read(path)
        if database.data:
            mended = mend(database)
            aside += [_set_aside(mended, out)]
            database = PerfDb.parse(mended.data)
        found.append(database.records)
    joined, conflicts = join_perf(found, list(map(str, sources)))
    name = name_of(out)
    if name and not name.text:
        _replace_sqlite(out, lambda temporary: write_sqlite(joined, temporary))
    else:
        lines = (f"{key}={';'.join(f'{s}:{p}' for s, p in record.items())}\n" for key, record in joined.items())
        write_atomically(out, (line.encode("latin-1") for line in lines))
    present = len(found[0])
    kept = tuple(path for path in aside if path)
    improved = sum(joined[key] != record for key, record in found[0].items())
    return MergeFilesReport(len(joined), present, len(joined) - present, improved, conflicts, kept)


def _merge_kernels(out: Path, sources: Sequence[Path]) -> MergeFilesReport:
    rows: dict[tuple[str, str], tuple[str, kernelcache.Kernel]] = {}
    conflicts = []
    present = 0
    for at, path in enumerate(sources):
        for row in kernelcache.kernels(path):
            fault = row.fault()
            if fault:
                raise NotADatabase(f"{path}: {fault}; repair it first")
            label, kept = rows.setdefault(row.key, (str(path), row))
            if kept.digest != row.digest:
                what = f"{label} and {path} compiled it to other code; kept that of the first"
                conflicts.append(Conflict(f"{row.name} {row.arguments}", what))
        present = len(rows) if at == 0 else present
    _replace_sqlite(out, lambda temporary: kernelcache.write(temporary, (row for _, row in rows.values())))
    return MergeFilesReport(len(rows), present, len(rows) - present, 0, tuple(conflicts), ())
