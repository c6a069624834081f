"""What is wrong inside a text database, line by line: every row of the table in docs/miopen.md that a file can show.

A file is read fast first; only lines that this reading left, or whose key, direction or solvers do not fit, are
inspected one by one. So checking a sound file costs little more than reading it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from warmup.miopen.finddb import FindDb
from warmup.miopen.keys import KEY_SHAPE
from warmup.miopen.names import DbName
from warmup.miopen.perfdb import PerfDb
from warmup.miopen.records import FAULTS, NOT_REPAIRABLE, Fault, Line, inspect
from warmup.miopen.solvers import NEWEST_KNOWN, is_known

TextDb = FindDb | PerfDb

_KEY = re.compile(KEY_SHAPE)


@dataclass(frozen=True)
class DbFinding:
    """One thing wrong with a database.

    ``code`` is stable for scripts, ``where`` is the file and line, ``why`` is what MIOpen makes of it. ``key`` is the
    record that is concerned, where there is one. ``repairable`` is whether ``repair`` mends it in a copy.
    """

    code: str
    where: str
    what: str
    why: str
    repairable: bool
    line: int | None = None
    key: str | None = None


@dataclass(frozen=True)
class Suspect:
    """A line that is not as MIOpen writes it: its number from 1, its place in the data, and what is in it."""

    number: int
    start: int
    end: int
    line: Line
    faults: tuple[Fault, ...]


def suspects(database: TextDb, *, judge_solvers: bool = True) -> Iterator[Suspect]:
    """Every faulty line, in the order of the file; the faults are those of the line and of its place among others.

    ``judge_solvers`` is whether a solver that no known MIOpen has is a fault.
    """
    data, kind = database.data, database.kind
    spans = dict(database.dirty)
    unknown: set[str] = set()
    if isinstance(database, FindDb) and judge_solvers:
        unknown = {name for name in database.solvers if not is_known(name)}
        spans.update(database.lines_of(unknown))
    if isinstance(database, FindDb) and kind == "find":
        spans.update(database.lines_against_direction())
        matches = _KEY.fullmatch
        spans.update((start, end) for key, start, end in database.rows() if not matches(key))
    repeated = dict(_repeated(database))
    spans.update((start, end) for start, end in repeated.values())
    number, counted = 1, 0
    for start, end in sorted(spans.items()):
        number += data.count(b"\n", counted, start)
        counted = start
        line = inspect(data[start:end].decode("latin-1"), kind)
        faults = [*line.faults, *_unknown_solvers(line, unknown)]
        if start in repeated:
            key = data[start:end].partition(b"=")[0].decode("latin-1")
            faults.append(Fault("duplicate-key", f"key {key!r} is there a second time"))
        if faults:
            yield Suspect(number, start, end, line, tuple(faults))


def check_text(database: TextDb, where: str) -> list[DbFinding]:
    """The findings inside a text database; ``where`` names the file."""
    findings = []
    if not database.data:
        why = "MIOpen leaves a file of 0 bytes behind after a failed Find; it reads it as a database without records"
        return [DbFinding("empty-file", where, "the file is empty", why, repairable=False)]
    for suspect in suspects(database, judge_solvers=knows_solvers(database.name)):
        key = suspect.line.records[0].key if suspect.line.records else None
        for fault in suspect.faults:
            place = f"{where}:{suspect.number}"
            repairable = fault.code not in NOT_REPAIRABLE
            findings.append(
                DbFinding(fault.code, place, fault.what, FAULTS[fault.code], repairable, suspect.number, key)
            )
    if not database.data.endswith(b"\n"):
        why = "MIOpen reads it, but the next record is appended to the last line, and both are lost"
        findings.append(DbFinding("no-final-newline", where, "the last line has no newline", why, repairable=True))
    return findings


def knows_solvers(name: DbName | None) -> bool:
    """Whether all solvers of a file's MIOpen are known, so that another one is a fault."""
    return name is None or name.version is None or name.version <= NEWEST_KNOWN


def _repeated(database: TextDb) -> Iterator[tuple[int, tuple[int, int]]]:
    """Lines whose key an earlier line has, by their start."""
    seen: set[str] = set()
    for key, start, end in database.rows():
        if key in seen:
            yield start, (start, end)
        seen.add(key)


def _unknown_solvers(line: Line, unknown: set[str]) -> list[Fault]:
    names = {item.solver for record in line.records for item in record.items}
    return [Fault("unknown-solver", f"no MIOpen has a solver {name!r}") for name in sorted(names & unknown)]
