"""What is in a directory of MIOpen's stores, entry by entry, so that a miss that wrote something can be named.

The directory holds ``db`` (find-db, fusion find-db, perf-db), ``cache`` (compiled kernels) and ``tmp`` (MIOpen's locks
and its compiler's scratch files). Entries are named ``find:KEY``, ``fusion:KEY``, ``perf:KEY`` and
``kernel:NAME ARGUMENTS``; the value changes when the entry's content does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

DB, CACHE, SCRATCH = "db", "cache", "tmp"
_TEXT_ENDINGS = {".fusion.ufdb.txt": "fusion", ".ufdb.txt": "find", ".udb.txt": "perf"}  # the longer ending first
_KERNELS = "SELECT kernel_name, kernel_args, kernel_hash FROM kern_db"


def database_files(root: Path) -> list[Path]:
    """The text databases of a store, in name order."""
    return sorted(path for path in (root / DB).glob("*") if path.name.endswith(tuple(_TEXT_ENDINGS)))


def kernel_caches(root: Path) -> list[Path]:
    """The kernel caches of a store; some versions of MIOpen put them into a directory named for the version."""
    return sorted((root / CACHE).rglob("*.ukdb"))


def entries(root: Path) -> dict[str, str]:
    """Every entry of the store at ``root``. Raises sqlite3.Error where a kernel cache is damaged.

    Where several files hold the same key (of another device or version), the one that comes last in name order counts.
    """
    found: dict[str, str] = {}
    for path in (*database_files(root), *kernel_caches(root)):
        found.update(_of_file(path))
    return found


class Watch:
    """Names what MIOpen adds to a store while a process runs; reads the files again only when they changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._signature = self._sign()
        self._entries = entries(root)

    def added(self) -> list[str]:
        """The entries that are new or changed since the last call, or since the start."""
        signature = self._sign()
        if signature == self._signature:
            return []
        before, self._entries, self._signature = self._entries, entries(self._root), signature
        return sorted(entry for entry, value in self._entries.items() if before.get(entry) != value)

    def _sign(self) -> tuple[tuple[str, int, int], ...]:
        folders = (self._root / DB, self._root / CACHE)
        files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
        return tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


# A file is read again only when it has changed: by its place, what it held when it had which state.
_remembered: dict[Path, tuple[object, dict[str, str]]] = {}


def _of_file(path: Path) -> dict[str, str]:
    log = _log(path)
    state = [(facts.st_ino, facts.st_size, facts.st_mtime_ns) for facts in map(Path.stat, [path, *log])]
    known = _remembered.get(path)
    if known is None or known[0] != state:
        known = _remembered[path] = (
            state,
            dict(_kernels(path, bool(log)) if path.suffix == ".ukdb" else _records(path)),
        )
    return known[1]


def _log(path: Path) -> list[Path]:
    """The log in which SQLite keeps what is not in the file yet, where there is one with something in it."""
    log = path.with_name(f"{path.name}-wal")
    return [log] if log.exists() and log.stat().st_size else []


def _records(path: Path) -> Iterator[tuple[str, str]]:
    kind = next(kind for ending, kind in _TEXT_ENDINGS.items() if path.name.endswith(ending))
    seen = set()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        key, equals, record = line.partition("=")
        if equals and key not in seen:  # of several lines with one key MIOpen uses the first
            seen.add(key)
            yield f"{kind}:{key}", record


def _kernels(path: Path, logged: bool) -> list[tuple[str, str]]:
    if not path.stat().st_size:
        return []
    # Without a log the file is whole, and is read as such: so that reading it leaves no new log behind.
    how = "mode=ro" if logged else "immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as database:
        return [(f"kernel:{name} {arguments}", digest) for name, arguments, digest in database.execute(_KERNELS)]
