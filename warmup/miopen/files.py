"""Any database file of MIOpen: which kind it is, by its name or else by its content, and its content in memory."""

from __future__ import annotations

import bz2
import re
from pathlib import Path

from warmup.miopen.finddb import FindDb, NotADatabase, name_of
from warmup.miopen.kernelcache import TABLE
from warmup.miopen.keys import KEY_SHAPE
from warmup.miopen.names import DbName, DbNameError, Kind
from warmup.miopen.perfdb import PerfDb
from warmup.miopen.records import PERF_KEY
from warmup.miopen.sqlitefile import tables
from warmup.miopen.writing import refuse_special

_HEAD = 1 << 16
_FIRST_KEYS = {
    "find": re.compile(rf"(?m)^{KEY_SHAPE}=".encode()),
    "fusion": re.compile(rb"(?m)^[^=\n]+="),
    "perf": re.compile(rf"(?m)^{PERF_KEY}=".encode()),
}
_ENDINGS = ("fdb.txt", "udb.txt", ".db.txt", ".udb", ".kdb", ".ukdb")
# What MIOpen keeps beside its databases, and we beside ours; none of it is a database.
_COMPANIONS = re.compile(r".*\.(?:time|temp|lock|set-aside(?:\.\d+)?)|.*-(?:wal|shm|journal)")


def kind_of(path: Path) -> Kind:
    """The kind of a file; raises NotADatabase where neither its name nor its content is of a database, OSError."""
    refuse_special(path)
    name = name_of(path)
    if name:
        return name.kind
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"SQLite format 3\0"):
        found = tables(path)
        if TABLE in found:
            return "kernels"
        if "perf_db" in found:
            return "perf"
        raise NotADatabase(f"{path} is SQLite, but has none of MIOpen's tables")
    if head.startswith(b"BZh"):
        try:
            head = bz2.BZ2Decompressor().decompress(head, _HEAD)
        except OSError as error:
            raise NotADatabase(f"{path} is damaged bzip2: {error}") from None
    for kind in ("find", "perf"):
        if _FIRST_KEYS[kind].search(head):
            return kind
    raise NotADatabase(f"{path} is not a database of MIOpen: its name is not, and no line begins with a key and =")


def is_database_name(name: str) -> bool:
    """Whether a file name ends as MIOpen's databases do and is no companion of one."""
    try:
        DbName.parse(name)
    except DbNameError:
        return name.removesuffix(".bz2").endswith(_ENDINGS) and not _COMPANIONS.fullmatch(name)
    return True


def databases_in(directory: Path) -> list[Path]:
    """The databases in a directory and below it, by name; not their ``.time``, ``.temp``, journals and locks."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and is_database_name(path.name))


def read_database(path: Path, kind: Kind | None = None) -> FindDb | PerfDb:
    """A find-db, fusion find-db or perf-db; raises NotADatabase for any other file, whatever its name says.

    A damaged one may have no record that MIOpen could use, but has a key. Kernel caches are not read into memory: see
    ``kernelcache``.
    """
    kind = kind or kind_of(path)
    if kind == "kernels":
        raise NotADatabase(f"{path} is a kernel cache; expected a find-db or a perf-db")
    database = PerfDb.read(path) if kind == "perf" else FindDb.read(path, kind)
    if not len(database) and database.data and not _FIRST_KEYS[kind].search(database.data):
        raise NotADatabase(f"{path} is not a {kind}-db: no line of it begins with a key and =")
    return database


def misnamed(path: Path) -> str | None:
    """Why MIOpen would never open a file that is named like one of its databases; None where it would."""
    if not is_database_name(path.name):
        return None
    name = name_of(path)
    if name is None:
        return f"{path.name} is not a name that MIOpen makes"
    if name.backend not in (None, "HIP"):
        return f"it is of the {name.backend} backend"
    if name.file_name != path.name and name.scope == "user":
        return f"for {name.device.arch} with {name.device.units} units MIOpen looks for {name.file_name}"
    return None
