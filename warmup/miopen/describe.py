"""The facts of one database file, for people and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warmup.miopen import kernelcache
from warmup.miopen.files import kind_of, read_database
from warmup.miopen.finddb import FindDb, name_of


def describe(path: Path) -> dict[str, Any]:
    """Kind, device, version, format and sizes; raises OSError, and NotADatabase for a file that is none.

    ``records`` counts keys, ``solutions`` what they hold together: solvers with times, parameters or programs.
    Device and version are None where the file's name does not say them.
    """
    kind, name = kind_of(path), name_of(path)
    facts: dict[str, Any] = {
        "file": str(path),
        "kind": kind,
        "scope": name.scope if name else None,
        "arch": name.device.arch if name else None,
        "cu_count": name.device.units if name else None,
        "xnack": name.device.xnack if name else None,
        "backend": name.backend if name else None,
        "version": ".".join(map(str, name.version)) if name and name.version else None,
        "hash": name.hash if name else None,
    }
    if kind == "kernels":
        count = len(kernelcache.digests(path))
        return facts | {"format": "sqlite", "records": count, "solutions": count, "bytes": path.stat().st_size}
    database = read_database(path, kind)
    if isinstance(database, FindDb):
        facts |= {"format": database.format, "zero_times": database.zero_times}
    else:
        facts |= {"format": "text" if database.data else "sqlite"}
    return facts | {
        "records": len(database),
        "solutions": database.solutions,
        "solvers": len(database.solvers),
        "solver_names": list(database.solvers),
        "damaged_lines": len(database.dirty) if isinstance(database, FindDb) and kind == "find" else None,
        "bytes": path.stat().st_size,
    }
