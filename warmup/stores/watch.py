"""Watches the stores of a serving process: an entry that appears after ready is a miss that somebody paid for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from warmup.stores.store import Store, added_entries


@dataclass(frozen=True)
class Look:
    """A store at one moment: how many entries it has, and the keys that are new or changed since the last look."""

    total: int
    new: tuple[str, ...]


class StoreWatch:
    """Compares the stores in ``root/<name>`` with what they were when the watch began."""

    def __init__(self, stores: Iterable[Store], root: Path) -> None:
        self._stores = tuple(stores)
        self._root = root
        self._known = {store.name: store.entries(root / store.name) for store in self._stores}

    def accept(self, store: str, entries: Mapping[str, str]) -> None:
        """Entries that somebody put there on purpose, which are no misses."""
        self._known[store] = {**self._known[store], **entries}

    def look(self) -> dict[str, Look]:
        """Every store by name, as it is now."""
        seen = {}
        for store in self._stores:
            entries = store.entries(self._root / store.name)
            seen[store.name] = Look(len(entries), tuple(added_entries(self._known[store.name], entries)))
            self._known[store.name] = entries
        return seen
