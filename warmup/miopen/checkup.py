"""Checking one database file: its content, its name, and where it lies.

Part of what spoils a database is not in it: a name that MIOpen does not look for, an owner or a mode that makes MIOpen
abort, a link that a rewrite replaces, a ``.time`` of another host. What each does was observed on MIOpen 3.4.0.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from warmup.miopen import kernelcache
from warmup.miopen.damage import DbFinding, check_text
from warmup.miopen.files import kind_of, misnamed
from warmup.miopen.finddb import SQLITE_MAGIC, FindDb, name_of, read_bytes
from warmup.miopen.names import DbName, Device
from warmup.miopen.perfdb import PerfDb, check_sqlite
from warmup.miopen.sqlitefile import plain_file
from warmup.miopen.writing import lock_paths


def check(path: Path, device: Device | None = None, version: str | None = None) -> list[DbFinding]:
    """Everything wrong with a file; ``device`` and ``version`` are those that it is meant for, where they are known.

    Raises OSError where the file cannot be read, and NotADatabase where it is none.
    """
    name, kind = name_of(path), kind_of(path)
    findings = list(_placement(path, name))
    findings += _name(path, name, device, version)
    if kind == "kernels":
        faults = kernelcache.check(path)
        why = "MIOpen's Find fails with status 5, or reports a possible database corruption"
        return findings + [DbFinding("bad-kernels", str(path), fault, why, repairable=True) for fault in faults]
    if kind != "perf":
        return findings + check_text(FindDb.read(path, kind), str(path))
    data = read_bytes(path)
    if data.startswith(SQLITE_MAGIC):
        why = "MIOpen fails with an internal error while accessing the database"
        with plain_file(path, data) as file:
            return findings + [DbFinding("bad-sqlite", str(path), fault, why, True) for fault in check_sqlite(file)]
    return findings + check_text(PerfDb.parse(data, name), str(path))


def _name(path: Path, name: DbName | None, device: Device | None, version: str | None) -> Iterator[DbFinding]:
    reason = misnamed(path)
    if reason:
        why = "MIOpen ignores the file without a word and starts a new one"
        yield DbFinding("wrong-name", str(path), reason, why, repairable=False)
    elif name and device:
        for reason in name.foreign_to(device, version):
            why = "MIOpen on this device does not read it; under another name it would believe foreign times"
            yield DbFinding("foreign", str(path), reason, why, repairable=False)


def _placement(path: Path, name: DbName | None) -> Iterator[DbFinding]:
    """What is wrong around a file that MIOpen writes to; a system database is only read."""
    if name is None or name.scope != "user":
        return

    def finding(code: str, what: str, why: str) -> DbFinding:
        return DbFinding(code, str(path), what, why, repairable=False)

    if path.is_symlink():
        yield finding("symlink", f"a link to {path.readlink()}", "the first rewrite replaces the link by a file")
    status = path.stat()
    if status.st_uid != os.geteuid():
        owner = f"owned by user {status.st_uid}, this process is user {os.geteuid()}"
        yield finding("foreign-owner", owner, "MIOpen appends, fails to set the mode and aborts the process (SIGABRT)")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK) or not status.st_mode & stat.S_IWUSR:
        what = "the file or its directory is read-only"
        yield finding("read-only", what, "hits work; every miss is tuned again each time, and its record is lost")
    temporary = path.with_name(path.name + ".temp")
    if temporary.exists():
        why = "a rewrite was interrupted; the records in it may be in no other file"
        yield finding("leftover-temp", f"{temporary.name} lies beside it", why)
    yield from _time(path, finding)
    for lock in lock_paths(path):
        if lock.exists() and not os.access(lock, os.R_OK | os.W_OK):
            yield finding("lock-unusable", f"{lock} cannot be opened", "every call of MIOpen returns status 7")


def _time(path: Path, finding: Callable[[str, str, str], DbFinding]) -> Iterator[DbFinding]:
    sidecar = path.with_name(path.name + ".time")
    if not sidecar.exists():
        return
    text = sidecar.read_text(errors="replace").strip()
    if not text.isdigit() or int(text) > time.clock_gettime_ns(time.CLOCK_MONOTONIC):
        what = f"{sidecar.name} says {text[:40]!r}, later than this host's uptime"
        yield finding("time-ahead", what, "MIOpen reads the whole file again on every lookup; remove it before a start")
