"""A store that many processes fill at once: each works on a private part, and what it made is merged back under a lock.

MIOpen's own locks hold only between processes that share a temporary directory, so containers on one volume lose each
other's records. Here nobody writes where another one writes. A folder ``out`` holds

    stores/miopen/   the store that grows; written under ``out/.lock`` only
    parts/N/         one private part: its own store, and the lock of the process that owns it
    tuned.txt        the keys that were tuned, one a line: what a sweep that was killed need not do again

A part whose owner has died is adopted by the next process that comes along.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from warmup.stores.miopen import MIOpenStore

_KEPT, _COPY = "part", "copy"


class Outlet:
    """The folder that a sweep fills."""

    def __init__(self, out: Path, store: MIOpenStore) -> None:
        self.root = out / "stores" / store.name
        self._out = out
        self._store = store
        self._tuned = out / "tuned.txt"
        self._parts = out / "parts"
        for folder in (self.root, self._parts):
            folder.mkdir(parents=True, exist_ok=True)
        self._adopt()

    def tuned(self) -> set[str]:
        """The keys that an earlier sweep tuned, where their records are still there."""
        keys = set(self._tuned.read_text().split()) if self._tuned.exists() else set()
        return keys & self._store.problem_keys(self.root)

    @contextmanager
    def part(self, *, keep: bool, filled: bool) -> Iterator[Part]:
        """A private part; ``filled`` with what the store holds so far. What is in it is merged back if ``keep``."""
        folder = self._parts / f"{_KEPT if keep else _COPY}-{uuid.uuid4().hex}"
        with ExitStack() as owned:
            with self._locked():
                folder.mkdir()
                fcntl.flock(owned.enter_context((folder / "owner").open("w")), fcntl.LOCK_EX)
                part = Part(folder)
                if filled:
                    shutil.copytree(self.root, part.root, dirs_exist_ok=True)
            try:
                yield part
            finally:
                with self._locked():
                    self._close(folder)

    def _adopt(self) -> None:
        """Closes the parts that dead processes left; a part that is owned is left alone."""
        with self._locked():
            for folder in self._parts.iterdir():
                with (folder / "owner").open("w") as owner:
                    try:
                        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    self._store.reclaim(folder / "store", {})
                    self._close(folder)

    def _close(self, folder: Path) -> None:
        """Merges a part that is to be kept, and removes it; under the lock."""
        if folder.name.startswith(_KEPT):
            part = Part(folder)
            self._store.merge(self.root, [part.root])
            with self._tuned.open("a") as file:
                file.writelines(f"{key}\n" for key in part.tuned())
        shutil.rmtree(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._out / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class Part:
    """One private part of an outlet."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "store"
        self.root.mkdir(exist_ok=True)
        self._tuned = folder / "tuned.txt"

    def mark_tuned(self, key: str) -> None:
        """Remembers that the key needs no more tuning, also if this process is killed at once."""
        with self._tuned.open("a") as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())

    def tuned(self) -> list[str]:
        """The keys marked so far; a last line that a kill cut short does not count."""
        return self._tuned.read_text().split("\n")[:-1] if self._tuned.exists() else []
