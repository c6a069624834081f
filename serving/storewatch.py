"""Watches the stores of a server, in a process beside it.

To look at a store is to look at thousands of files, or to read databases. A thread that does that in Python holds the
interpreter's lock, and requests wait for it; a process of low priority does not.

The process, ``python -m serving.storewatch ROOT STORE...``, looks once and then answers (``serving.beside``) an empty
line with what is in the stores now (``Look`` by store), and ``{STORE: {KEY: VALUE}}`` with ``{}`` once it knows these
entries.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

from serving.beside import Beside, serve
from warmup.stores.registry import STORES
from warmup.stores.watch import Look, StoreWatch


class StoreWatcher:
    """Asks the process. Used on one event loop."""

    def __init__(self, stores: Iterable[str], root: Path) -> None:
        self._process = Beside("serving.storewatch", str(root), *stores)

    async def look(self) -> dict[str, Look]:
        """Every store by name, with what is new since the last look. The first only says what there is, and so does one
        that follows upon ProcessEnded, which it raises where the process has died."""
        found = await self._process.ask("")
        return {store: Look(look["total"], tuple(look["new"])) for store, look in found.items()}

    async def accept(self, added: Mapping[str, Mapping[str, str]]) -> None:
        """Entries by store that somebody put there on purpose: no look will call them new. Raises ProcessEnded."""
        await self._process.ask(json.dumps(added))

    async def close(self) -> None:
        """Ends the process."""
        await self._process.close()


def main(root: Path, names: Iterable[str]) -> None:
    """The process itself."""
    watch = StoreWatch((store for store in STORES if store.name in set(names)), root)

    def answer(line: str) -> object:
        if not line:
            return _looks(watch)
        for store, entries in json.loads(line).items():
            watch.accept(store, entries)
        return {}

    serve(answer)


def _looks(watch: StoreWatch) -> dict[str, object]:
    try:
        return {name: {"total": look.total, "new": look.new} for name, look in watch.look().items()}
    except Exception:  # a library may be rewriting its files at this moment: the next look will do
        traceback.print_exc()
        return {}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
