"""Watches the stores of a server, in a process beside it.

To look at a store is to look at thousands of files, or to read databases. A thread that does that in Python holds the
interpreter's lock, and requests wait for it; a process of low priority does not.

The process, ``python -m serving.storewatch ROOT STORE...``, answers (``serving.beside``) an empty line with what is in
the stores now (``Look`` by store), and ``{STORE: {KEY: VALUE}}`` with ``{}`` once it knows these entries.
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

_SECONDS = 120.0  # for one look, on the slowest disk


class StoreWatcher:
    """Asks the process. Used on one event loop."""

    def __init__(self, stores: Iterable[str], root: Path) -> None:
        self._process = Beside("serving.storewatch", str(root), *stores)

    async def start(self) -> None:
        """Begins the process, which has looked at nothing yet. Raises ProcessEnded."""
        await self._process.start()

    async def look(self) -> dict[str, Look]:
        """Every store by name, with what is new since the last look. The first only says what there is, and so does one
        that follows upon ProcessEnded, which it raises where the process has died."""
        found = await self._process.ask("", _SECONDS)
        return {store: Look(look["total"], tuple(look["new"])) for store, look in found.items()}

    async def accept(self, added: Mapping[str, Mapping[str, str]]) -> None:
        """Entries by store that somebody put there on purpose: no look will call them new. Raises ProcessEnded."""
        await self._process.ask(json.dumps(added), _SECONDS)

    async def close(self) -> None:
        """Ends the process."""
        await self._process.close()


def main(root: Path, names: Iterable[str]) -> None:
    """The process itself."""
    stores, watch = [store for store in STORES if store.name in set(names)], None

    def answer(line: str) -> object:
        nonlocal watch
        if watch is None:
            watch = StoreWatch(stores, root)
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
