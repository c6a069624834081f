"""Two databases of one kind side by side: by key, by what is chosen, and what the other choice costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warmup.miopen.finddb import FindDb, Solution


@dataclass(frozen=True)
class Change:
    """One key under which the two choose differently.

    ``old`` and ``new`` are solvers with their times in ms. ``kept_ms`` is what the old choice takes by the new
    database's own measurement, None where it did not measure that solver.
    """

    key: str
    old: str
    old_ms: float
    new: str
    new_ms: float
    kept_ms: float | None

    @property
    def lost_ms(self) -> float:
        """How much longer the new choice takes than the old; negative where time was won."""
        return self.new_ms - self.old_ms


@dataclass(frozen=True)
class FindDiff:
    """``same`` keys choose one solver on both sides; ``drift_ms`` is by how much its times grew, over all of them."""

    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    changed: tuple[Change, ...]
    same: int
    drift_ms: float

    @property
    def lost_ms(self) -> float:
        """Time lost on the keys that choose a slower solver than before."""
        return sum(max(change.lost_ms, 0.0) for change in self.changed)

    @property
    def won_ms(self) -> float:
        """Time won on the keys that choose a faster one."""
        return sum(max(-change.lost_ms, 0.0) for change in self.changed)

    @property
    def differs(self) -> bool:
        """Whether any key or any choice is another."""
        return bool(self.only_old or self.only_new or self.changed)


@dataclass(frozen=True)
class EntryDiff:
    """Two perf-dbs or kernel caches: keys on one side only, and keys whose entry is another."""

    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    changed: tuple[str, ...]
    same: int

    @property
    def differs(self) -> bool:
        """Whether anything differs."""
        return bool(self.only_old or self.only_new or self.changed)


def diff_find(old: FindDb, new: FindDb) -> FindDiff:
    """Compares what MIOpen would choose: the solver with the smallest time of each record."""
    changed, same, drift = [], 0, 0.0
    for key in old:
        if key not in new:
            continue
        before, after = old[key], new[key]
        if before[0].solver == after[0].solver:
            same += 1
            drift += after[0].time_ms - before[0].time_ms
            continue
        kept = _time(after, before[0].solver)
        first, second = before[0], after[0]
        changed.append(Change(key, first.solver, first.time_ms, second.solver, second.time_ms, kept))
    changed.sort(key=lambda change: -change.lost_ms)
    only_old = tuple(key for key in old if key not in new)
    only_new = tuple(key for key in new if key not in old)
    return FindDiff(only_old, only_new, tuple(changed), same, drift)


def diff_entries(old: Mapping[str, object], new: Mapping[str, object]) -> EntryDiff:
    """Compares by key and by equality of the entries."""
    changed = tuple(key for key in old if key in new and old[key] != new[key])
    only_old = tuple(key for key in old if key not in new)
    only_new = tuple(key for key in new if key not in old)
    return EntryDiff(only_old, only_new, changed, len(old) - len(only_old) - len(changed))


def _time(solutions: tuple[Solution, ...], solver: str) -> float | None:
    return next((solution.time_ms for solution in solutions if solution.solver == solver), None)
