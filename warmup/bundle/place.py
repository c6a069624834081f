"""A place in a local directory that one process at a time fills, and that is there whole or not at all.

    with reserved(target) as place:
        ...write below place.staging...
        place.commit()

The lock is a file beside the target and ends with its process, however that ends; what a killed process left behind is
removed by the next one that holds the lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmup.bundle.files import BundleError, sync, sync_tree

_REPLACED = "replaced"  # in a staging directory: what was at the target
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True)
class Place:
    """``staging`` is a private directory (0700) beside ``target``; what is written there is not visible yet."""

    target: Path
    staging: Path

    def commit(self, written: Path, durable: bool = True) -> None:
        """Makes a file or directory below ``staging`` appear at the target; a directory that is there is moved away.

        Where the file system can, both are exchanged in one step. Elsewhere a process that is killed between two steps
        leaves the old directory in ``staging``, and the next one that reserves the place puts it back.
        ``durable`` first writes all of it through to the disk, so that a machine that loses power has all or nothing.
        """
        if durable:
            sync_tree(written) if written.is_dir() else sync(written)
        if written.is_dir() and self.target.is_dir() and any(self.target.iterdir()):
            self._replace(written)
        else:
            written.rename(self.target)
        sync(self.target.parent)

    def _replace(self, written: Path) -> None:
        if _exchange(written, self.target):
            return
        replaced = self.staging / _REPLACED
        self.target.rename(replaced)
        try:
            written.rename(self.target)
        except OSError:
            replaced.rename(self.target)
            raise


@contextlib.contextmanager
def reserved(target: Path) -> Iterator[Place]:
    """Waits until no other process fills ``target``, and gives a staging directory that is removed in the end.

    Raises BundleError where the parent directory is missing and cannot be made, or where the target is a mount point.
    """
    if target.is_mount():
        raise BundleError(f"{target} is a mount point, which cannot appear all at once; name a directory in it")
    parent = target.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BundleError(f"{parent}: {error.strerror}") from error
    with locked(target):
        remove_partial(target)
        staging = Path(tempfile.mkdtemp(prefix=_partial(target), dir=parent))
        try:
            yield Place(target, staging)
        finally:
            shutil.rmtree(staging)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two directories in one step; False where the C library, the kernel or the file system cannot.

    renameat2(2); the constants are of linux/fcntl.h and linux/fs.h.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


class Busy(Exception):
    """Another process fills or removes the place."""


def remove_partial(target: Path) -> None:
    """Removes what killed processes left of ``target``, which must be locked."""
    for stale in [path for path in target.parent.iterdir() if path.name.startswith(_partial(target))]:
        if (stale / _REPLACED).is_dir() and not target.exists():
            (stale / _REPLACED).rename(target)  # the new one never came
        if stale.is_dir() and not stale.is_symlink():
            shutil.rmtree(stale)
        else:
            stale.unlink()


def _partial(target: Path) -> str:
    return f".{target.name}.partial-"


@contextlib.contextmanager
def locked(target: Path, wait: bool = True) -> Iterator[None]:
    """Keeps other processes from filling or removing ``target``. Waits for one that does, or raises Busy."""
    path = target.with_name(f".{target.name}.lock")
    descriptor = _acquire(path, wait)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, wait: bool) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise Busy(str(path)) from error
        except OSError as error:
            raise BundleError(f"{path}: {error.strerror}") from error
        # The holder before us removed the file when it was done: a lock on a removed file locks nobody out.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()) and stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
        os.close(descriptor)
