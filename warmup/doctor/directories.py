"""The directories and databases of MIOpen on this node: where they are, who may write there, and what is damaged."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from warmup.doctor.finding import Finding, Severity, error, note, warning
from warmup.doctor.system import MIOpenFacts
from warmup.miopen.checkup import check
from warmup.miopen.damage import DbFinding
from warmup.miopen.files import databases_in
from warmup.miopen.finddb import NotADatabase
from warmup.miopen.names import Device

# File systems that MIOpen itself takes for networked (it looks at statfs types), as the kernel names them in mounts.
_NETWORKED = frozenset(
    {"nfs", "nfs4", "smb", "smb3", "smbfs", "cifs", "coda", "ocfs2", "afs", "lustre", "ceph", "fuse.ceph", "9p", "gpfs"}
)
# Damage that makes MIOpen fail or lose records; anything else costs time or is only untidy.
_FATAL = frozenset(
    {
        "bad-algorithm",
        "bad-kernels",
        "bad-sqlite",
        "bad-workspace",
        "cut-record",
        "empty-record",
        "foreign-owner",
        "glued-lines",
        "lock-unusable",
    }
)
_LITTLE, _NOTHING = 64 << 20, 1 << 20  # bytes: less than the kernels of one model, than one kernel
_DO = {
    "foreign-owner": "serve from a private copy, as preheat serve does, or own the file",
    "read-only": "serve from a private copy, as preheat serve does, or make it writable",
    "symlink": "put the file itself there",
    "time-ahead": "remove the .time beside it",
}
_HARMLESS = frozenset({"crlf", "foreign", "symlink", "unknown-solver", "wrong-name"})


def user_directories(variables: Mapping[str, str]) -> dict[str, Path]:
    """Where MIOpen keeps user databases (``db``) and compiled kernels (``cache``) in a process of these variables."""
    home = variables.get("HOME", "")
    base = Path(home) if home not in ("", "/") else Path(variables.get("TMPDIR") or tempfile.gettempdir())
    places = {"db": ("MIOPEN_USER_DB_PATH", ".config/miopen"), "cache": ("MIOPEN_CUSTOM_CACHE_DIR", ".cache/miopen")}
    found = {}
    for kind, (name, default) in places.items():
        given = variables.get(name, "")
        if given.startswith("~/"):
            given = f"{home}{given[1:]}"
        found[kind] = Path(given) if given else base / default
    return found


def check_directories(variables: Mapping[str, str], root: Path, device: Device | None) -> list[Finding]:
    """The findings about MIOpen's own directories and the databases in them; ``root`` is where ``proc`` is."""
    findings = []
    mounts = _mounts(root)
    for kind, directory in user_directories(variables).items():
        findings += _filesystem(kind, directory, mounts, variables)
        findings += _access(kind, directory)
        for path in databases_in(directory) if os.access(directory, os.R_OK | os.X_OK) else ():
            findings += _database(path, device)
    migraphx = variables.get("ORT_MIGRAPHX_MODEL_CACHE_PATH", "")
    if migraphx and not Path(migraphx).is_dir():
        why = "the MIGraphX provider compiles every model and then fails to save it, in every process"
        findings.append(error("directory", migraphx, "ORT_MIGRAPHX_MODEL_CACHE_PATH does not exist", why, "create it"))
    return findings


def check_system_databases(miopens: Iterable[MIOpenFacts], devices: Iterable[Device]) -> list[Finding]:
    """Which databases AMD ships for the node's devices; MIOpen takes a file of the exact name and no neighbour's."""
    findings = []
    devices = tuple(dict.fromkeys(devices))
    for miopen in miopens:
        for device in devices:
            folder, base = miopen.databases, device.base
            wanted = {
                "find-db": [f"{base}.HIP.fdb.txt"],
                "perf-db": [f"{base}.db.txt", f"{base}.db"],
                "kernels": [f"{base}.kdb", f"{device.arch}.kdb"],
            }
            missing = [kind for kind, names in wanted.items() if not any((folder / name).is_file() for name in names)]
            if "find-db" in missing:
                findings.append(
                    warning(
                        "system-db",
                        folder,
                        f"no {wanted['find-db'][0]} for {base}",
                        "every shape without a record of your own is searched for, seconds to minutes each",
                        "warm every shape and serve from the bundle; do not count on shipped records",
                    )
                )
            for kind in missing:
                if kind != "find-db":
                    what = f"no shipped {kind} for {base} ({' or '.join(wanted[kind])})"
                    why = (
                        "first calls compile their kernels" if kind == "kernels" else "solvers run untuned or are tuned"
                    )
                    findings.append(note("system-db", folder, what, why, "warm every shape and serve from the bundle"))
    return findings


def _filesystem(
    kind: str, directory: Path, mounts: Mapping[Path, str], variables: Mapping[str, str]
) -> Iterable[Finding]:
    name = "MIOPEN_USER_DB_PATH" if kind == "db" else "MIOPEN_CUSTOM_CACHE_DIR"
    mount = max((path for path in mounts if directory.absolute().is_relative_to(path)), key=lambda p: len(p.parts))
    if mounts[mount] not in _NETWORKED:
        return
    what = f"lies on {mounts[mount]} (mounted at {mount})"
    do = f"point {name} to a local directory of this process's own, filled from the bundle"
    if variables.get(name):
        why = "locks of several hosts do not exclude each other: records are lost, and the kernels' SQLite is damaged"
        yield error("directory", directory, what, why, do)
    else:
        why = "MIOpen silently moves databases and kernels to /tmp, where a restart loses them"
        yield warning("directory", directory, what, why, do)


def _access(kind: str, directory: Path) -> Iterable[Finding]:
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir():
        why = "MIOpen cannot create its directory, and every call returns status 7"
        yield error("directory", directory, f"{nearest} is no directory", why, "name another directory")
    elif not os.access(nearest, os.W_OK | os.X_OK):
        what = "cannot be written" if nearest == Path(directory) else f"cannot be created in {nearest}"
        if nearest != Path(directory):
            why = "every call of MIOpen returns status 7"
        elif kind == "cache":
            why = "what is warm runs, but the first kernel that is not in the cache is fatal"
        else:
            why = "what is warm runs, but every other shape is searched for again in every process"
        yield error("directory", directory, what, why, "give each process a writable directory of its own")
    elif nearest == Path(directory) and nearest.stat().st_uid != os.geteuid():
        what = f"is owned by user {nearest.stat().st_uid}, this process is user {os.geteuid()}"
        why = "MIOpen sets modes after writing, which fails in files of others and aborts the process"
        yield error("directory", directory, what, why, "give each user a directory of its own")
    else:
        yield from _space(directory, nearest)


def _space(directory: Path, nearest: Path) -> Iterable[Finding]:
    free = shutil.disk_usage(nearest).free
    if free < _LITTLE:
        what = f"{free >> 20} MiB are free there"
        why = "a full disk cuts a record short without a word, and every later call of its problem fails (status 5)"
        yield (error if free < _NOTHING else warning)(
            "directory", directory, what, why, "make room, or use another disk"
        )


def _database(path: Path, device: Device | None) -> Iterable[Finding]:
    """The findings about one database, those of a kind as one."""
    try:
        found = check(path, device)
    except (NotADatabase, OSError) as problem:
        why = "MIOpen fails or starts anew with this file"
        return [error("database", path, str(problem), why, "move it away and restore the bundle's")]
    by_code: dict[str, list[DbFinding]] = {}
    for finding in found:
        by_code.setdefault(finding.code, []).append(finding)
    return [_summed(path, code, several) for code, several in by_code.items()]


def _summed(path: Path, code: str, several: list[DbFinding]) -> Finding:
    first = several[0]
    severity = Severity.WARNING
    if code in _FATAL:
        severity = Severity.ERROR
    elif code in _HARMLESS:
        severity = Severity.NOTE
    what = first.what + (f" (line {first.line})" if first.line else "")
    if len(several) > 1:
        what += f", and {len(several) - 1} more of this kind"
    otherwise = _DO.get(code, "restore the bundle's file, or move this one away")
    do = f"preheat db repair {path}" if first.repairable else otherwise
    return Finding(severity, f"database-{code}", str(path), what, first.why, do)


def _mounts(root: Path) -> dict[Path, str]:
    """File system types by mount point."""
    table = {Path("/"): ""}
    try:
        lines = (root / "proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        parts = line.split(" ")
        if len(parts) > 2:
            table[Path(parts[1].replace("\\040", " "))] = parts[2]
    return table
