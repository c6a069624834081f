"""Writing beside a live MIOpen: its own lock, and files that are either the old or the new one, never half of each.

Source: MIOpen ``src/lock_file.cpp`` and ``src/db.cpp``, as of 2024-10; observed on MIOpen 3.4.0: one empty file for
each text database under ``<TMPDIR>/miopen-lockfiles``, locked whole with POSIX fcntl. Some later versions keep the
file in ``miopen-lockfiles`` beside the database; where that directory exists, its lock is taken too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOCK_WAIT_S = 60.0  # as long as MIOpen itself waits
_POLL_S = 0.02  # fcntl has no wait with a deadline


class DbLocked(TimeoutError):
    """Another process holds MIOpen's lock of a database for longer than we wait."""


class SpecialFile(OSError):
    """A device, a pipe, a socket or a directory, where a file is to be read or written."""


def refuse_special(path: Path) -> None:
    """Raises SpecialFile where something else than a regular file is at ``path``, also behind a symlink.

    Reading a pipe would wait for ever; what is renamed over a device takes the device away from the whole machine.
    """
    if path.exists() and not path.is_file():
        raise SpecialFile(f"{path} is not a regular file")


def lock_paths(database: Path, temp_dir: Path | None = None) -> list[Path]:
    """The lock files of a text database; MIOpen hashes the directory as its user wrote it, without a final slash."""
    database = Path(os.path.abspath(database))  # noqa: PTH100 - no symlink may be resolved here
    digest = hashlib.md5(str(database.parent).encode(), usedforsecurity=False).hexdigest()
    directory = (temp_dir or _temporary_directory()) / "miopen-lockfiles"
    paths = [directory / f"{digest}_{database.name}.lock"]
    beside = database.parent / "miopen-lockfiles"
    if beside.is_dir():
        paths.append(beside / f"{database.name}.lock")
    return paths


@contextmanager
def locked(database: Path, *, temp_dir: Path | None = None, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Keeps every MIOpen process of this host and TMPDIR from the database; raises DbLocked after ``wait_s``.

    POSIX locks belong to the process: this excludes other processes, not other threads, and must not be used in a
    process that has libMIOpen loaded and this database open.
    """
    deadline = time.monotonic() + wait_s
    with ExitStack() as stack:
        for path in lock_paths(database, temp_dir):
            stack.enter_context(_locked_file(path, deadline, wait_s))
        yield


@contextmanager
def _locked_file(path: Path, deadline: float, wait_s: float) -> Iterator[None]:
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o777)  # as MIOpen makes it: processes of other users must be able to lock
    fresh = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if fresh and os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o777)
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise DbLocked(f"{path} is locked by another process for more than {wait_s:g} s") from error
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, parts: Iterable[bytes]) -> None:
    """Replaces ``path`` by the parts, or leaves it as it was; a symlink's target is replaced, not the link.

    MIOpen's ``.time`` beside it is not touched: it holds a host's uptime, which a writer must not invent.
    """
    with new_file(path) as temporary, temporary.open("wb") as file:
        file.writelines(parts)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A name beside ``path`` for a file that the block makes; it becomes ``path`` once it is complete on disk.

    It keeps the mode of the file that it replaces. Where the block raises, ``path`` stays as it was. It raises
    SpecialFile, and any OSError names ``path``.
    """
    refuse_special(path)
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield temporary
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        _sync(temporary, os.O_RDONLY)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno is not None and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def _temporary_directory() -> Path:
    """As C++'s ``temp_directory_path`` finds it."""
    names = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
    return Path(next((os.environ[name] for name in names if os.environ.get(name)), "/tmp"))


def free_name(path: Path) -> Path:
    """``path``, or with the first number after it that is not taken: what was set aside earlier is never replaced."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
