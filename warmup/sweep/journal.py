"""What a sweep has done so far, one JSON line per shape, each written through to the disk before the next begins.

Whatever is killed, at most the shape in flight is lost: a line that is not whole is not believed. The lines also say
which entries each shape left in the stores, with their digests, so that the rest can be taken out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from handlers.shapes import Shape
from warmup.proof import OutputsProof
from warmup.stores.store import Phase
from warmup.sweep.messages import Entries, Ran

FORMAT = 1


class JournalError(Exception):
    """A journal that cannot be written."""


@dataclass(frozen=True)
class Done:
    """The outcome of one shape in one phase, as ``Ran`` but without its errors."""

    first_seconds: float
    steady_seconds: float | None
    added: Mapping[str, int]  # by store
    misses: Mapping[str, int]
    note: str = ""
    outputs: OutputsProof | None = None


@dataclass
class History:
    """What the lines so far amount to. A shape is its model's name and its text."""

    identity: Mapping[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)  # name to digest of all that its results depend on
    done: dict[Phase, dict[tuple[str, str], Done]] = field(default_factory=lambda: {phase: {} for phase in Phase})
    vouched: dict[str, dict[str, str]] = field(default_factory=dict)

    def find(self, phase: Phase, model: str, shape: Shape) -> Done | None:
        return self.done[phase].get((model, shape.text))

    def take(self, line: Mapping[str, Any]) -> None:
        """Follows one line."""
        if line["kind"] == "begin":
            self.identity = line["identity"]
            for collection in (self.models, self.vouched, *self.done.values()):
                collection.clear()
            self._vouch(line["entries"])
        elif line["kind"] == "model":
            if self.models.get(line["model"]) != line["digest"]:
                for shapes in self.done.values():
                    for key in [key for key in shapes if key[0] == line["model"]]:
                        del shapes[key]
            self.models[line["model"]] = line["digest"]
        else:
            self._take_shape(Phase(line["kind"]), line)

    def _take_shape(self, phase: Phase, line: Mapping[str, Any]) -> None:
        added = {store: len(entries) for store, entries in line["added"].items()}
        if phase is not Phase.PROVE:
            self._vouch(line["added"])
            if added:
                self.done[Phase.PROVE].clear()  # what was proven was proven of other stores
        self.done[phase][line["model"], line["shape"]] = Done(
            line["first_seconds"],
            line["steady_seconds"],
            added,
            line["misses"],
            line.get("note", ""),
            OutputsProof.from_json(line["outputs"]) if line.get("outputs") else None,
        )

    def _vouch(self, entries: Entries) -> None:
        for store, found in entries.items():
            self.vouched.setdefault(store, {}).update(found)


class Journal:
    """The file, open for appending, and the history that it holds."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self.history = History()

    def begin(self, identity: Mapping[str, str], entries: Entries) -> None:
        """Starts over with stores that hold ``entries``; comes after ``forget``."""
        self._write({"kind": "begin", "format": FORMAT, "identity": dict(identity), "entries": entries})

    def forget(self) -> None:
        """Empties the journal: from here until ``begin``, there is nothing to resume."""
        with _blamed(self._path):
            self._file.truncate(0)
        self.history = History()

    def model(self, name: str, digest: str) -> None:
        """Says what a model is now; what was done for another model of that name is forgotten."""
        if self.history.models.get(name) != digest:
            self._write({"kind": "model", "model": name, "digest": digest})

    def ran(self, phase: Phase, model: str, ran: Ran) -> None:
        """A shape is done."""
        self._write(
            {
                "kind": phase.value,
                "model": model,
                "shape": ran.shape.text,
                "first_seconds": ran.first_seconds,
                "steady_seconds": ran.steady_seconds,
                "added": ran.added,
                "misses": ran.misses,
                "note": ran.note,
                "outputs": asdict(ran.outputs) if ran.outputs else None,
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        with _blamed(self._path):
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self.history.take(line)


@contextmanager
def opened(path: Path) -> Iterator[Journal]:
    """The journal at ``path``, made where there is none. A last line that is not whole is cut off."""
    with _blamed(path):
        file = path.open("a+b")
    try:
        journal = Journal(file, path)
        with _blamed(path):
            _read(file, journal.history)
        yield journal
    finally:
        with _blamed(path):  # what a full disk did not take is tried once more
            file.close()


def _read(file: BinaryIO, history: History) -> None:
    file.seek(0)
    whole = 0
    for line in file:
        if not line.endswith(b"\n"):
            break
        try:
            history.take(json.loads(line))
        except (ValueError, KeyError, TypeError):
            break
        whole += len(line)
    file.truncate(whole)


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """Turns an OSError into a JournalError that names the journal."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from error
