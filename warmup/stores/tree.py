"""Stores that are directories of files which never change once written: Inductor's cache, optimised ONNX graphs.

The entry's key is the file's path below the root, its value a digest of the content.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from warmup.stores.store import Finding, MergeReport, Store

CHUNK = 1 << 20


class TreeStore(Store):
    """A store whose entries are files; ``counts`` says which files are entries, ``damage`` what is wrong with one."""

    def __init__(self) -> None:
        self._digests: dict[tuple[str, int, int, int], str] = {}

    @abstractmethod
    def counts(self, path: PurePosixPath) -> bool:
        """Whether the file at this path below the root is an entry, and not a lock or an unfinished file."""

    @abstractmethod
    def damage(self, path: Path) -> str | None:
        """Why the file cannot be the whole of what was written, or None. Runs and unpickles nothing."""

    def identical(self, path: Path) -> bytes | None:
        """What of a file makes it this entry and no other; None, as for most files, where that is every byte."""
        return None

    def entries(self, root: Path) -> dict[str, str]:
        found = {}
        for key, path in self._files(root):
            with suppress(FileNotFoundError):  # a process that uses the store has just replaced it
                found[key] = self._digest(path)
        return found

    def merge(self, into: Path, sources: Iterable[Path]) -> MergeReport:
        present = self.entries(into)
        added, known, conflicts = 0, 0, []
        for source in sources:
            for key, path in self._files(source):
                value = self._digest(path)
                if key not in present:
                    _copy(path, into / key)
                    present[key] = value
                    added += 1
                    continue
                known += 1
                if present[key] != value:
                    conflicts.append(f"{key}: two builds of the same entry; kept the first")
        return MergeReport(added, known, tuple(conflicts))

    def check(self, root: Path) -> list[Finding]:
        findings = []
        for key, path in self._files(root):
            what = self.damage(path)
            if what:
                findings.append(Finding(key, what, "its shape would fail or be compiled again", repairable=True))
        return findings

    def reclaim(self, root: Path, vouched: Mapping[str, str]) -> list[Finding]:
        removed = []
        found = self.entries(root)
        for key in sorted(found):
            if vouched.get(key) != found[key]:
                (root / key).unlink()
                removed.append(Finding(key, "unfinished or not vouched for", "its writer was killed", repairable=True))
        self.tidy(root)
        return removed

    def tidy(self, root: Path) -> None:
        for folder, _, names in os.walk(root, topdown=False):
            here = Path(folder)
            for name in names:
                if not self.counts(PurePosixPath((here / name).relative_to(root).as_posix())):
                    (here / name).unlink()
            if here != root and not any(here.iterdir()):
                here.rmdir()

    def _files(self, root: Path) -> Iterator[tuple[str, Path]]:
        for folder, _, names in os.walk(root):
            here = Path(folder)
            for name in names:
                path = here / name
                key = path.relative_to(root).as_posix()
                if self.counts(PurePosixPath(key)):
                    yield key, path

    def _digest(self, path: Path) -> str:
        """A file's digest, read once for as long as its inode, size and time stay the same."""
        facts = path.stat()
        state = (str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if state not in self._digests:
            hasher, known = hashlib.sha256(), self.identical(path)
            if known is not None:
                hasher.update(known)
            else:
                with path.open("rb") as file:
                    while block := file.read(CHUNK):
                        hasher.update(block)
            self._digests[state] = hasher.hexdigest()[:32]
        return self._digests[state]


def _copy(source: Path, target: Path) -> None:
    """Copies a file with its mode; it appears at its place when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copy2(source, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
