"""Where a sweep works: a hidden directory beside the bundle that it makes, with one sweep at a time in it.

    .NAME.sweep/lock            held while a sweep runs; it ends with its process, however that ends
    .NAME.sweep/journal.jsonl   see ``journal``
    .NAME.sweep/stores-N/       the stores in the making
    .NAME.sweep/proof-N/        the copy of them that the proof runs on
    .NAME.sweep/bundle/         the finished bundle, on its way to NAME
    .NAME.sweep/logs/           what the worker processes printed

Whenever a worker was killed, the stores move to the next N: a compiler that outlived it writes to a path that is no
longer there, and what it had open already is taken out because no finished shape vouches for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from warmup.stores.store import Finding, Store
from warmup.sweep.messages import Entries

_STORES = "stores-"
_PROOF = "proof-"


class SweepRunning(Exception):
    """Another sweep works on the same bundle."""


class WorkspaceError(Exception):
    """A place where no sweep can work."""


@dataclass(frozen=True)
class Workspace:
    """The directory of one sweep; the caller holds its lock."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def bundle(self) -> Path:
        """Where the bundle is put together: ``stores/<store>/...`` and the manifest."""
        return self.root / "bundle"

    @property
    def stores(self) -> Path | None:
        """The stores in the making, None where no sweep has begun."""
        found = self._generations()
        return found[-1] if found else None

    def start_over(self) -> Path:
        """Empty stores; those of an earlier sweep are removed. The journal must have forgotten them."""
        self._remove_stores()
        stores = self._generation(1)
        stores.mkdir()
        return stores

    def take_back(self, stores: Iterable[Store], vouched: Entries) -> list[Finding]:
        """After a sweep or one of its workers was killed: the stores, with what nobody vouches for removed."""
        unfinished = self.bundle / "stores"
        current = unfinished if unfinished.is_dir() else self.stores
        if current is None:
            raise WorkspaceError(f"{self.root}: the stores of the sweep are gone; remove this directory")
        moved = self._generation(self._last() + 1)
        current.rename(moved)
        _remove(self.bundle)
        removed = []
        for store in stores:
            if (moved / store.name).is_dir():
                removed += store.reclaim(moved / store.name, vouched.get(store.name, {}))
                store.relocate(moved / store.name)
        return removed

    def copy(self, stores: Iterable[Store]) -> Path:
        """A copy of the stores to prove on."""
        current = self.stores
        assert current is not None
        self._remove_copies()
        target = self.root / f"{_PROOF}{self._last()}"
        target.mkdir()
        for store in stores:
            if (current / store.name).is_dir():
                shutil.copytree(current / store.name, target / store.name)
                store.tidy(target / store.name)
                store.relocate(target / store.name)
        return target

    def hand_over(self) -> Path:
        """Moves the stores to where the bundle is put together."""
        current = self.stores
        assert current is not None
        _remove(self.bundle)
        self.bundle.mkdir()
        current.rename(self.bundle / "stores")
        return self.bundle

    def clear(self) -> None:
        """Removes everything but the lock and the logs, the journal first: without it the rest means nothing."""
        self.journal.unlink(missing_ok=True)
        self._remove_stores()

    def _remove_stores(self) -> None:
        self._remove_copies()
        for path in (*self._generations(), self.bundle):
            _remove(path)

    def _remove_copies(self) -> None:
        for path in tuple(self.root.glob(f"{_PROOF}*")):
            _remove(path)

    def _generations(self) -> list[Path]:
        found = [path for path in self.root.glob(f"{_STORES}*") if path.name.removeprefix(_STORES).isdecimal()]
        return sorted(found, key=_number)

    def _last(self) -> int:
        found = self._generations()
        return _number(found[-1]) if found else 0

    def _generation(self, number: int) -> Path:
        return self.root / f"{_STORES}{number}"


def _number(path: Path) -> int:
    return int(path.name.removeprefix(_STORES))


def _remove(path: Path) -> None:
    """Removes a directory; a dying compiler may still put a file into it, so it is moved out of its way first."""
    if path.exists():
        doomed = path.with_name(f"{path.name}.removed")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def reserved(out: Path) -> Iterator[Workspace]:
    """The workspace of the bundle at ``out``, made where it is missing.

    Raises SweepRunning at once where another sweep is in it; WorkspaceError where it cannot be made, or where in the
    end no bundle could appear by a rename.
    """
    if out.is_mount():
        raise WorkspaceError(f"{out} is a mount point, where no bundle can appear all at once; name a directory in it")
    root = out.parent / f".{out.name}.sweep"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WorkspaceError(f"{root}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise SweepRunning(
                f"{out}: another sweep is at work on this bundle (process {holder}); wait, or choose another --out"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield Workspace(root)
    finally:
        os.close(descriptor)


def entries(stores: Iterable[Store], root: Path) -> Mapping[str, dict[str, str]]:
    """What every store holds, by store."""
    return {store.name: store.entries(root / store.name) for store in stores}
