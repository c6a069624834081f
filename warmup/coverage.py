"""What of a plan's convolutions a find-db covers, and the convolution time that its own times predict.

All times are the database's: measured by whoever filled it, on the device in its name. Three are compared: the fastest
solver of a record, the fastest *dynamic* one (on a miss, MIOpen's default mode times only those), and the naive one.
A shipped database keeps few solvers of a record, so each comparison is over the problems of which both are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.shapes import Shape
from warmup.miopen.finddb import FindDb, Solution, name_of, read_bytes
from warmup.miopen.names import DbName
from warmup.miopen.problem import ConvProblem
from warmup.miopen.solvers import is_dynamic, is_naive
from warmup.plan import Plan
from warmup.trace.result import PlanTrace, ShapeTrace


class CoverageError(ValueError):
    """Databases that cannot answer together; the message names the file and why."""


@dataclass(frozen=True)
class Comparison:
    """A slower choice of solvers against the fastest, over the ``problems`` for which both times are known; in ms."""

    problems: int
    ms: float
    best_ms: float

    @property
    def ratio(self) -> float:
        """How many times the fastest solvers' time this takes."""
        return self.ms / self.best_ms

    def to_json(self) -> dict[str, object]:
        return {"problems": self.problems, "ms": self.ms, "best_ms": self.best_ms, "ratio": self.ratio}

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> Comparison | None:
        """What ``to_json`` made; None of None."""
        return cls(int(document["problems"]), float(document["ms"]), float(document["best_ms"])) if document else None


@dataclass(frozen=True)
class ShapeCoverage:
    """One shape of a plan.

    ``problems`` are distinct, ``executions`` count each as often as one run asks for it, ``missing`` are the keys of
    problems without a record. ``best_ms`` is the time of all executions of covered problems with the fastest solver of
    each; None where no record has a time.
    """

    shape: Shape
    weight: float
    problems: int
    executions: int
    covered: int
    missing: tuple[str, ...]
    best_ms: float | None
    default: Comparison | None
    naive: Comparison | None
    elsewhere: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        return {
            "shape": self.shape.text,
            "weight": self.weight,
            "problems": self.problems,
            "executions": self.executions,
            "covered": self.covered,
            "missing": list(self.missing),
            "predicted_ms": self.best_ms,
            "default": self.default.to_json() if self.default else None,
            "naive": self.naive.to_json() if self.naive else None,
            "elsewhere": dict(self.elsewhere),
        }


@dataclass(frozen=True)
class Records:
    """The records of some find-dbs for some keys: of a key in several, that of the first in MIOpen's order."""

    solutions: Mapping[str, tuple[Solution, ...]]
    sources: tuple[Path, ...]
    device: str | None

    @classmethod
    def load(cls, paths: Sequence[Path], keys: Iterable[str]) -> Records:
        """Reads the records of ``keys``; user databases come before system ones, as MIOpen asks them.

        Raises CoverageError on a file that cannot be read, is another kind of database, or is of another device than
        the others; NotADatabase on one that is no database.
        """
        wanted = {key.encode() for key in keys}
        names = {path: name_of(path) for path in paths}
        solutions: dict[str, tuple[Solution, ...]] = {}
        ordered = sorted(paths, key=lambda path: getattr(names[path], "scope", "user") == "system")
        device = _device(names)
        for path in ordered:
            try:
                database = _select(path, names[path], wanted)
            except OSError as error:
                raise CoverageError(f"{path}: {error.strerror}") from error
            for key, found in database.items():
                solutions.setdefault(key, found)
        return cls(solutions, tuple(ordered), device)


def cover(plan: Plan, trace: PlanTrace, records: Records) -> tuple[ShapeCoverage, ...]:
    """The coverage of every traced shape, in the trace's order."""
    times = {problem: _times(records.solutions.get(key)) for problem, key in trace.keys.items()}
    return tuple(_cover(shape, plan.weight(shape.shape), trace.keys, times) for shape in trace)


@dataclass(frozen=True)
class _Times:
    """Milliseconds of one record's solvers; None for a choice that it does not hold."""

    best: float | None
    default: float | None
    naive: float | None


def _times(solutions: tuple[Solution, ...] | None) -> _Times | None:
    if solutions is None:
        return None
    # Shipped databases hold some times of 0, which are no measurement.
    timed = [solution for solution in solutions if solution.time_ms > 0]
    return _Times(
        best=min((s.time_ms for s in timed), default=None),
        default=min((s.time_ms for s in timed if is_dynamic(s.solver)), default=None),
        naive=min((s.time_ms for s in timed if is_naive(s.solver)), default=None),
    )


def _cover(
    trace: ShapeTrace, weight: float, keys: Mapping[ConvProblem, str], times: Mapping[ConvProblem, _Times | None]
) -> ShapeCoverage:
    known = [(count, found) for problem, count in trace.calls.items() if (found := times[problem]) is not None]
    timed = [count * found.best for count, found in known if found.best is not None]
    return ShapeCoverage(
        shape=trace.shape,
        weight=weight,
        problems=len(trace.calls),
        executions=trace.executions,
        covered=len(known),
        missing=tuple(dict.fromkeys(keys[problem] for problem in trace.calls if times[problem] is None)),
        best_ms=sum(timed) if timed else None,
        default=_compare((count, found.best, found.default) for count, found in known),
        naive=_compare((count, found.best, found.naive) for count, found in known),
        elsewhere=trace.elsewhere,
    )


def _compare(pairs: Iterable[tuple[int, float | None, float | None]]) -> Comparison | None:
    both = [(count * best, count * other) for count, best, other in pairs if best is not None and other is not None]
    if not both:
        return None
    return Comparison(len(both), ms=sum(other for _, other in both), best_ms=sum(best for best, _ in both))


def _device(names: Mapping[Path, DbName | None]) -> str | None:
    """The device that the file names agree on."""
    bases: dict[str, Path] = {}
    for path, name in names.items():
        if name is None:
            continue
        if name.kind != "find":
            raise CoverageError(f"{path}: a {name.kind} database; coverage reads find-dbs (.fdb.txt, .ufdb.txt)")
        bases.setdefault(name.device.base, path)
    if len(bases) > 1:
        listed = ", ".join(f"{path} of {base}" for base, path in bases.items())
        raise CoverageError(f"databases of different devices, whose times cannot be added: {listed}")
    return next(iter(bases), None)


def _select(path: Path, name: DbName | None, wanted: set[bytes]) -> FindDb:
    """The lines of a file that are of the wanted keys, read as a find-db: most of a shipped database is of others."""
    lines = [line for line in read_bytes(path).split(b"\n") if line.partition(b"=")[0] in wanted]
    if lines:
        return FindDb(b"\n".join(lines) + b"\n", name=name)
    FindDb.read(path)  # raises where the file is no database at all
    return FindDb(b"", name=name)
