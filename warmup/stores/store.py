"""The interface of all stores.

A store is one on-disk cache that removes a first-call cost. It lives in a directory of its own, ``root``, which
belongs to one writer at a time. What a phase needs (environment variables, framework switches, engine options) is
data, so that a parent can set it for a fresh process before any framework is imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from handlers.spec import ModelSpec


class Phase(str, Enum):
    """What a process does with the stores."""

    TUNE = "tune"
    SEAL = "seal"
    PROVE = "prove"
    SERVE = "serve"


@dataclass(frozen=True)
class Settings:
    """What a process must have set before it imports a framework.

    ``environment`` are environment variables; ``framework`` are attributes by dotted path, set after the import
    (``torch.backends.cudnn.benchmark``); ``engine`` are options handed to the engine.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    framework: Mapping[str, bool | int | str] = field(default_factory=dict)
    engine: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Settings) -> Settings:
        """Both together; raises ValueError where they disagree."""
        merged = []
        for mine, theirs in (
            (self.environment, other.environment),
            (self.framework, other.framework),
            (self.engine, other.engine),
        ):
            for key in mine.keys() & theirs.keys():
                if mine[key] != theirs[key]:
                    raise ValueError(f"two stores want {key} to be {mine[key]!r} and {theirs[key]!r}")
            merged.append({**mine, **theirs})
        return Settings(*merged)


@dataclass(frozen=True)
class Finding:
    """Something wrong with a store: what, where, why it hurts, and whether ``repair`` can mend it."""

    where: str
    what: str
    why: str
    repairable: bool = False


@dataclass(frozen=True)
class MergeReport:
    """What a merge did: entries added, entries that were there already, and conflicts (each named, with the choice)."""

    added: int
    present: int
    conflicts: tuple[str, ...] = ()


class Store(ABC):
    """One kind of on-disk cache."""

    name: str

    @abstractmethod
    def applies(self, spec: ModelSpec) -> bool:
        """Whether a model of this description fills or reads this store."""

    @abstractmethod
    def settings(self, phase: Phase, root: Path) -> Settings:
        """What a process needs for ``phase`` with the store in ``root``. Imports no framework."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """The facts of this machine and these libraries that make the store's entries valid, by field name."""

    @abstractmethod
    def entries(self, root: Path) -> dict[str, str]:
        """Everything in the store: the entry's key to a value that changes when the entry's content does."""

    @abstractmethod
    def merge(self, into: Path, sources: Iterable[Path]) -> MergeReport:
        """Joins stores filled elsewhere into the store at ``into``."""

    @abstractmethod
    def check(self, root: Path) -> list[Finding]:
        """What is damaged in the store; an empty list means that it may be used."""

    def tidy(self, root: Path) -> None:  # noqa: B027  most stores hold nothing of the kind
        """Removes what is true on this machine or at this moment only (locks, clocks, scratch files), before the store
        is shipped or copied. No process may be using it."""

    def relocate(self, root: Path) -> None:  # noqa: B027  most stores hold no path
        """Makes a store that was copied or moved to ``root`` whole again where its files name the place they were in.
        The entries stay what they are. No process may be using it."""

    def reclaim(self, root: Path, vouched: Mapping[str, str]) -> list[Finding]:
        """After a process was killed while it used the store: removes what it may have left half written.

        ``vouched`` are the entries, as ``entries`` gave them, that finished shapes left. Returns what was removed. The
        base removes nothing: right for a store whose library survives being killed.
        """
        return []

    def misses(self) -> dict[str, int]:
        """What the framework has looked for in this store and not found since this process began, by the framework's
        own names; empty where the framework counts nothing. Imports no framework."""
        return {}


def added_entries(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The keys of entries that are new or changed."""
    return sorted(key for key, value in after.items() if before.get(key) != value)
