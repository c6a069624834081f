"""The files of a bundle on a local disk: their names, their digests, and copies checked while they are made.

Nothing here follows a symbolic link or opens anything but a regular file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
STORES = "stores"
CHUNK = 1 << 20  # bytes read at a time
_SYNCS = 32  # files flushed at once
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a write says when there is no room


class BundleError(Exception):
    """A bundle that could not be made, read or written."""


class BundleRefused(BundleError):
    """A bundle that was checked and does not hold: damage, a lie, or no reason to trust it."""


@dataclass(frozen=True)
class FileDigest:
    """SHA-256 of a file as lowercase hex digits, and its size in bytes."""

    sha256: str
    size: int


def walk(root: Path) -> dict[str, int]:
    """The size in bytes of every file under ``root`` by its relative POSIX path, sorted.

    Raises BundleRefused on anything that is neither a directory nor a regular file, and on names that are not UTF-8.
    """
    found: dict[str, int] = {}
    pending = [root]
    try:
        while pending:
            directory = pending.pop()
            with os.scandir(directory) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    name = path.relative_to(root).as_posix()
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if stat.S_ISDIR(mode):
                        pending.append(path)
                    elif stat.S_ISREG(mode):
                        found[_utf8(root, name)] = entry.stat(follow_symlinks=False).st_size
                    else:
                        raise BundleRefused(f"{root}: {name!r} is a {kind(mode)}; a bundle holds regular files only")
    except OSError as error:
        raise BundleError(f"{error.filename or root}: {error.strerror}") from error
    return dict(sorted(found.items()))


def _utf8(root: Path, name: str) -> str:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BundleRefused(f"{root}: the file name {name!r} is not UTF-8") from error
    return name


def kind(mode: int) -> str:
    """What a file mode stands for, in words."""
    kinds = {
        stat.S_IFLNK: "symbolic link",
        stat.S_IFIFO: "named pipe",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "character device",
        stat.S_IFBLK: "block device",
        stat.S_IFDIR: "directory",
    }
    return kinds.get(stat.S_IFMT(mode), "special file")


@contextlib.contextmanager
def regular(path: Path) -> Iterator[BinaryIO]:
    """A regular file open for reading; raises BundleRefused on a link, a device or a pipe, and never waits for one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise BundleRefused(f"{path} is a symbolic link; a bundle holds regular files only") from error
        raise
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise BundleRefused(f"{path} is a {kind(mode)}; a bundle holds regular files only")
        yield file


def digest(path: Path) -> FileDigest:
    """The digest of a regular file."""
    hasher, size = hashlib.sha256(), 0
    with regular(path) as file:
        while block := file.read(CHUNK):
            hasher.update(block)
            size += len(block)
    return FileDigest(hasher.hexdigest(), size)


class Checked:
    """A stream of which exactly the expected bytes may be read.

    Raises BundleRefused, naming the file, where the stream is shorter, longer or different. At most one byte more than
    expected is read, so that a stream without end costs nothing.
    """

    def __init__(self, stream: BinaryIO, expected: FileDigest, name: str) -> None:
        self._stream = stream
        self._expected = expected
        self._name = name
        self._left = expected.size
        self._hasher = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, none at the expected end."""
        block = self._stream.read(min(size, self._left))
        if self._left and size and not block:
            found = self._expected.size - self._left
            raise BundleRefused(f"{self._name}: {self._expected.size} bytes expected, {found} found")
        self._hasher.update(block)
        self._left -= len(block)
        return block

    def finish(self) -> None:
        """To be called after the last read: only now is what was read known to be right."""
        if self._stream.read(1):
            raise BundleRefused(f"{self._name}: {self._expected.size} bytes expected, more found")
        if self._hasher.hexdigest() != self._expected.sha256:
            raise BundleRefused(
                f"{self._name}: sha256 {self._expected.sha256} expected, {self._hasher.hexdigest()} found"
            )


def copy(source: BinaryIO, target: BinaryIO | None, expected: FileDigest, name: str) -> None:
    """Copies a file and checks it on the way, or only checks it where ``target`` is None; raises like ``Checked``."""
    checked = Checked(source, expected, name)
    while block := checked.read(CHUNK):
        if target is not None:
            target.write(block)
    checked.finish()


@contextlib.contextmanager
def created(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A new file, by default of this user alone; its directory is made. ``sync`` writes it through to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Writes a file, or a directory's own entries, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Writes all files and directories below ``root`` through to the disk, many at once, which disks do together."""
    found = [(Path(directory), names) for directory, _, names in os.walk(root)]
    with ThreadPoolExecutor(_SYNCS) as pool:
        for _ in pool.map(sync, [directory / name for directory, names in found for name in names]):
            pass
        for _ in pool.map(sync, [directory for directory, _ in found]):
            pass


def replace(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Puts ``data`` at ``path`` atomically: readers see the old content or the new, and so does a crash."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    try:
        with created(beside) as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
        sync(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)
