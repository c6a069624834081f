"""Joining databases that were filled apart: the shards of a sweep, a team's machines, a system and a user database.

For a find-db the result has every solver of every source with its fastest time, so MIOpen chooses the fastest that
anybody measured. A time of 0 counts as not measured. What the sources disagree on in a way that matters is reported:
which solver is the fastest, or what workspace a solver needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warmup.miopen.finddb import FindDb
from warmup.miopen.names import DbName, Kind
from warmup.miopen.records import ALGORITHMS, Item, Solution, inspect


class MergeRefused(ValueError):
    """Databases that are not of one device and one MIOpen: joined, they would give wrong choices."""


@dataclass(frozen=True)
class Conflict:
    """A key on which sources disagree, and which of the values was kept."""

    key: str
    what: str


@dataclass(frozen=True)
class Joined:
    """A merge of find-dbs: the new text, line by line, and how it came about.

    ``present`` are the keys of the first source, ``added`` those that only later sources have, ``improved`` those of
    the first source whose record gained a solver or a faster time.
    """

    lines: tuple[bytes, ...]
    present: int
    added: int
    improved: int
    conflicts: tuple[Conflict, ...]


def one_target(names: Sequence[DbName | None]) -> None:
    """Raises MergeRefused where the names are not of one kind, device and version; None and no version fit to all."""
    known = [name for name in names if name is not None]
    for field in ("kind", "device", "version_text"):
        values = {getattr(name, field): name for name in known if getattr(name, field) is not None}
        if len(values) > 1:
            texts = ", ".join(name.file_name for name in values.values())
            raise MergeRefused(f"databases of different {field.removesuffix('_text')}: {texts}")


def join_find(sources: Sequence[FindDb], labels: Sequence[str]) -> Joined:
    """Joins sound find-dbs (``repair.mend`` first); ``labels`` name them in conflicts.

    A record that is in one source only, or in all alike, stays byte for byte.
    """
    lines: list[bytes] = []
    conflicts: list[Conflict] = []
    done: set[str] = set()
    added = improved = 0
    for at, source in enumerate(sources):
        for key in source:
            if key in done:
                continue
            done.add(key)
            pairs = zip(labels[at:], sources[at:], strict=True)
            found = [(label, line) for label, other in pairs if (line := other.line(key)) is not None]
            line = found[0][1]
            if any(text != line for _, text in found):
                line, disagreements = _joined_record(key, found, source.kind)
                conflicts += disagreements
                improved += at == 0 and _values(line, source.kind) != _values(found[0][1], source.kind)
            added += at > 0
            lines.append(line.encode("latin-1") + b"\n")
    return Joined(tuple(lines), len(sources[0]), added, improved, tuple(conflicts))


def join_perf(
    sources: Sequence[Mapping[str, Mapping[str, str]]], labels: Sequence[str]
) -> tuple[dict[str, dict[str, str]], tuple[Conflict, ...]]:
    """Joins the records of perf-dbs; where parameters of a solver differ the first source's are kept.

    Parameters carry no times, so nothing in the databases says which of them are better.
    """
    joined: dict[str, dict[str, str]] = {}
    origin: dict[tuple[str, str], str] = {}
    conflicts = []
    for label, source in zip(labels, sources, strict=True):
        for key, record in source.items():
            kept = joined.setdefault(key, {})
            for solver, parameters in record.items():
                if kept.setdefault(solver, parameters) == parameters:
                    origin.setdefault((key, solver), label)
                    continue
                what = f"{solver}: {origin[key, solver]} and {label} have other parameters; kept those of the first"
                conflicts.append(Conflict(key, what))
    return joined, tuple(conflicts)


def _joined_record(key: str, found: Sequence[tuple[str, str]], kind: Kind) -> tuple[str, list[Conflict]]:
    """One record of several: each solver with its fastest time, fastest first."""
    best: dict[str, tuple[str, Item]] = {}
    conflicts = []
    choices = {}
    for label, line in found:
        items = inspect(line, kind).records[0].items
        fastest = min(items, key=_rank)
        choices.setdefault(fastest.solver, (label, fastest))
        for item in items:
            if item.solver in best:
                conflicts += _workspace_conflict(key, best[item.solver], (label, item))
            if item.solver not in best or _rank(item) < _rank(best[item.solver][1]):
                best[item.solver] = (label, item)
    ordered = sorted((item for _, item in best.values()), key=_rank)
    if len(choices) > 1:
        told = ", ".join(f"{label} chose {item.solver} ({_time(item):g} ms)" for label, item in choices.values())
        conflicts.append(Conflict(key, f"{told}; kept {ordered[0].solver}"))
    return f"{key}={';'.join(_modern(item) for item in ordered)}", conflicts


def _values(line: str, kind: Kind) -> set[Solution | None]:
    """What a record says, whatever the order and the format of its items."""
    return {item.solution for item in inspect(line, kind).records[0].items}


def _workspace_conflict(key: str, old: tuple[str, Item], new: tuple[str, Item]) -> list[Conflict]:
    before, after = old[1].solution, new[1].solution
    if before is None or after is None or before.workspace == after.workspace:
        return []
    what = (
        f"{before.solver} needs {before.workspace} bytes of workspace by {old[0]}, {after.workspace} by {new[0]}; "
        "kept that of the faster"
    )
    return [Conflict(key, what)]


def _rank(item: Item) -> tuple[bool, float]:
    """Measured times first, then the fastest."""
    return _time(item) == 0, _time(item)


def _time(item: Item) -> float:
    return item.solution.time_ms if item.solution else 0.0


def _modern(item: Item) -> str:
    """The item in format 2.0, its numbers as they were written."""
    name, _, values = item.text.partition(":")
    if name not in ALGORITHMS:
        return item.text
    solver, time, workspace, *_ = values.split(",")
    return f"{solver}:{time},{workspace},{name}"
