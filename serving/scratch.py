"""A directory for one server, removed at its end, or by the next server where it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "preheat-serve-"
_LOCK = "lock"  # held by the process that the directory belongs to


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty directory of mode 0700 in the system's place for temporary files."""
    reap()
    made = Path(tempfile.mkdtemp(prefix="preheat-new-"))
    with (made / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = made.rename(made.with_name(made.name.replace("preheat-new-", _PREFIX, 1)))  # seen only when locked
        try:
            inside = place / "stores"
            inside.mkdir(mode=0o700)
            yield inside
        finally:
            shutil.rmtree(place, ignore_errors=True)


def reap() -> None:
    """Removes the directories of this user's servers that are no more."""
    for place in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if place.is_symlink() or place.lstat().st_uid != os.getuid():
                continue
            with (place / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
        except OSError:  # its process lives, or it has just been removed
            continue
