"""Removes verified copies of bundles that no process has used for a while.

Every server keeps the copy that it started from in a cache (``warmup.bundle.pull``), one for each bundle, so they would
pile up with every rollout. Beside a copy is a file, ``.sha256-<hex>.used``: its time is the last use that is known, and
a process that uses the copy holds a shared lock on it (flock, which network file systems forward for files) as long as
it lives. A copy that is in use, or is being pulled, is not pruned, however old.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmup.bundle.files import BundleError
from warmup.bundle.place import Busy, locked, remove_partial

log = logging.getLogger("preheat.bundle")

_COPY = re.compile(r"sha256-[0-9a-f]{64}")
_PARTIAL = re.compile(rf"\.({_COPY.pattern})\.partial-.*")
_LEFT = re.compile(rf"\.({_COPY.pattern})\.(?:used|lock)")
_SOMEBODY_ELSES = (errno.EPERM, errno.EACCES, errno.EROFS)
_CANNOT = (errno.ENOSPC, errno.EDQUOT, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_held: list[int] = []  # descriptors whose locks last until this process ends


@dataclass(frozen=True)
class Copy:
    """One copy in a cache: its directory, its size in bytes, and how many seconds ago it was last used."""

    path: Path
    size: int
    unused: float

    @property
    def digest(self) -> str:
        return self.path.name.replace("-", ":", 1)


@dataclass(frozen=True)
class Pruned:
    """The copies that were removed, or would be, and why others could not be."""

    removed: tuple[Copy, ...]
    failed: tuple[str, ...]


def hold(path: Path) -> bool:
    """Keeps the copy at ``path`` from being pruned while this process lives, and notes its use; False where it is gone
    already. In a cache that only others may write to it does nothing more than look. Raises BundleError."""
    descriptor = -1
    try:
        descriptor = _open_use(path)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for one who is removing the copy
        os.utime(descriptor)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        if error.errno in _SOMEBODY_ELSES:
            return path.is_dir()
        if error.errno in _CANNOT:
            log.warning("%s: %s, so nothing keeps this copy from being pruned", _use(path), error.strerror)
            return path.is_dir()
        raise BundleError(f"{_use(path)}: {error.strerror}") from error
    if path.is_dir() and _same(_use(path), descriptor):
        _held.append(descriptor)
        return True
    os.close(descriptor)
    return False


def prune(cache: Path, unused: float, dry: bool = False) -> Pruned:
    """Removes the copies that nobody has used for ``unused`` seconds and nobody uses now, and what killed pulls and
    prunes have left; with ``dry`` it only says which. What is no copy of a bundle stays. Raises BundleError where the
    cache cannot be read."""
    removed, failed = [], []
    for path in _places(cache):
        try:
            copy = _prune(path, unused, dry)
        except (OSError, BundleError) as error:
            failed.append(str(error))
        else:
            removed += [copy] if copy is not None else []
    return Pruned(tuple(removed), tuple(failed))


def _places(cache: Path) -> Iterator[Path]:
    """Where there is a copy, or a part of one."""
    try:
        names = {entry.name for entry in os.scandir(cache)}
    except FileNotFoundError:
        return
    except OSError as error:
        raise BundleError(f"{cache}: {error.strerror}") from error
    copies = {name for name in names if _COPY.fullmatch(name)}
    parts = {found[1] for name in names if (found := _PARTIAL.fullmatch(name) or _LEFT.fullmatch(name))}
    yield from (cache / name for name in sorted(copies | parts))


def _prune(path: Path, unused: float, dry: bool) -> Copy | None:
    try:
        with locked(path, wait=False):
            if not dry:
                remove_partial(path)
            if path.is_dir() and not path.is_symlink():
                return _remove(path, unused, dry)
            if not dry and not path.exists():
                _use(path).unlink(missing_ok=True)  # with the place locked nobody is about to make the copy
            return None
    except Busy:  # somebody pulls it
        return None


def _remove(path: Path, unused: float, dry: bool) -> Copy | None:
    """With the place locked."""
    known = _use(path).exists()
    descriptor = _open_use(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not known:  # pulled by a Preheat that wrote no uses down
            os.utime(descriptor, (path.stat().st_atime, path.stat().st_mtime))
        age = time.time() - os.fstat(descriptor).st_mtime
        if age < unused:
            return None
        copy = Copy(path, _size(path), age)
        if not dry:  # taken away at once, then deleted; all this needs is room for an empty file
            gone = path.with_name(f".{path.name}.partial-pruned")
            path.rename(gone)
            shutil.rmtree(gone)
        return copy
    except BlockingIOError:  # in use, so its last use is now
        if not dry:
            os.utime(descriptor)
        return None
    finally:
        if not path.exists():
            _use(path).unlink(missing_ok=True)
        os.close(descriptor)


def _use(path: Path) -> Path:
    return path.with_name(f".{path.name}.used")


def _open_use(path: Path) -> int:
    return os.open(_use(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    return sum(entry.lstat().st_size for entry in path.rglob("*") if not entry.is_dir())
