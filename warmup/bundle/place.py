"""A place in a local directory that one process at a time fills, and that is there whole or not at all.

    with reserved(target) as place:
        ...write below place.staging...
        place.commit()

The lock is a file beside the target and ends with its process, however that ends; what a killed process left behind is
removed by the next one that holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmup.bundle.files import BundleError, sync, sync_tree


@dataclass(frozen=True)
class Place:
    """``staging`` is a private directory (0700) beside ``target``; what is written there is not visible yet."""

    target: Path
    staging: Path

    def commit(self, written: Path, durable: bool = True) -> None:
        """Makes a file or directory below ``staging`` appear at the target; a directory that is there is moved away.

        ``durable`` first writes all of it through to the disk, so that a machine that loses power has all or nothing.
        """
        if durable:
            sync_tree(written) if written.is_dir() else sync(written)
        if written.is_dir() and self.target.is_dir() and any(self.target.iterdir()):
            self.target.rename(self.staging / "replaced")
        written.rename(self.target)
        sync(self.target.parent)


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
    prefix = f".{target.name}.partial-"
    with _locked(parent / f".{target.name}.lock"):
        for stale in [path for path in parent.iterdir() if path.name.startswith(prefix)]:
            shutil.rmtree(stale)
        staging = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            yield Place(target, staging)
        finally:
            shutil.rmtree(staging)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = _acquire(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise BundleError(f"{path}: {error.strerror}") from error
        # The holder before us removed the file when it was done: a lock on a removed file locks nobody out.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()) and stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
        os.close(descriptor)
