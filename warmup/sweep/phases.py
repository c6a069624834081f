"""Tune, seal and prove: which shapes each phase runs, what counts as done, and what happens when a worker dies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from handlers.loading import Model
from handlers.shapes import Shape
from warmup.proof import ShapeProof
from warmup.stores.registry import stores_for
from warmup.stores.store import Phase, Store
from warmup.sweep.budget import Candidate, Costs, fits, ordered
from warmup.sweep.crew import Crew
from warmup.sweep.journal import Done, Journal
from warmup.sweep.messages import Ran
from warmup.sweep.process import WorkerDied, WorkerFailed
from warmup.sweep.progress import Advanced, Note, Report, Started
from warmup.sweep.workspace import Workspace

BUDGET = "budget"
ATTEMPTS = 3  # a shape whose worker dies is tried again: more often than not it was somebody else's kill
MAX_SEAL_PASSES = 4
MAX_ROUNDS = 3  # of sealing and proving

Key = tuple[str, Shape]


@dataclass
class Phases:
    """One sweep's work on its stores. ``failures`` says why a shape will not be proven,
    ``broken`` why a model could not be loaded, ``crew`` makes a phase's worker processes."""

    models: Mapping[str, Model]
    stores: tuple[Store, ...]
    work: Workspace
    journal: Journal
    report: Report
    costs: Costs
    ends: float | None  # of time.monotonic, where there is a budget
    failures: dict[Key, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    crew: Callable[..., Crew] = Crew

    def run(self, wanted: list[Candidate]) -> None:
        """All phases for these shapes; what is done already is not done again."""
        self._measure(wanted)
        only_proven = [c for c in wanted if self._only_proves(c.model)]
        filling = [c for c in wanted if c not in only_proven]
        self._tune([c for c in filling if not self._done(Phase.TUNE, c)])
        tuned = [c for c in filling if self._done(Phase.TUNE, c) and (c.model, c.shape) not in self.failures]
        unsealed = [c for c in tuned if not self._silent(Phase.SEAL, c)]
        tuned += only_proven
        for _ in range(MAX_ROUNDS):
            self._seal(unsealed)
            self._prove(self._unproven(tuned))
            unsealed = [c for c in tuned if self._done(Phase.PROVE, c) and not self._silent(Phase.PROVE, c)]
            if not unsealed:
                break

    def _unproven(self, tuned: list[Candidate]) -> list[Candidate]:
        """What is to be proven. Of a model whose shapes share their code that is all or nothing: what one of them added
        to the stores since may have become the code of another."""
        missing = [c for c in tuned if not self._silent(Phase.PROVE, c) and (c.model, c.shape) not in self.failures]
        whole = {c.model for c in missing if self.models[c.model].spec.engine.dynamic_shapes}
        return [c for c in tuned if c in missing or c.model in whole]

    def proof(self, model: str, shape: Shape, weight: float) -> ShapeProof:
        """What came of a shape that was to be proven."""
        history = self.journal.history
        tuned, proven = history.find(Phase.TUNE, model, shape), history.find(Phase.PROVE, model, shape)
        reason = self.failures.get((model, shape), "")
        if not reason and proven:
            reason = _doubt(proven.added, proven.misses)
        return ShapeProof(
            shape=shape,
            weight=weight,
            proven=proven is not None and not reason,
            cold_seconds=self._cold(model, tuned, proven),
            first_seconds=proven.first_seconds if proven else None,
            steady_seconds=proven.steady_seconds if proven else None,
            added=dict(proven.added) if proven else {},
            reason=reason or (proven.note if proven else ""),
            outputs=proven.outputs if proven else None,
        )

    def _cold(self, model: str, tuned: Done | None, proven: Done | None) -> float | None:
        """What the first call takes where nothing is tuned: without a store, any process's first call does. A capture
        is no part of it."""
        if tuned is not None:
            return tuned.first_seconds
        stores_nothing = self._only_proves(model) and not self.models[model].spec.engine.captures
        return proven.first_seconds if proven is not None and stores_nothing else None

    def _only_proves(self, model: str) -> bool:
        """Where PyTorch fills no store, there is nothing to tune or to seal: what cuDNN chooses, and captured graphs,
        live in their process only."""
        spec = self.models[model].spec
        return spec.engine.kind == "torch" and not stores_for([spec])

    def _measure(self, wanted: Iterable[Candidate]) -> None:
        for candidate in wanted:
            done = self._done(Phase.TUNE, candidate)
            if done:
                self.costs.measured(candidate.model, candidate.shape, done.first_seconds, done.steady_seconds)

    def _tune(self, pending: list[Candidate]) -> None:
        """Tunes the most valuable shapes first where there is a budget, else model by model."""
        for name in dict.fromkeys(candidate.model for candidate in pending):
            self.report(Started(Phase.TUNE, name, sum(c.model == name for c in pending)))

        def recover() -> None:
            removed = self.work.take_back(self.stores, self.journal.history.vouched)
            if removed:
                self.report(Note(f"removed {len(removed)} store entries that a killed process left unfinished"))

        self._shapes(Phase.TUNE, pending, self._current, self._affordable, recover)

    def _affordable(self, left: list[Candidate]) -> Candidate | None:
        """What comes first: where there is a budget, what is worth most and fits into the rest of it."""
        if self.ends is None:
            return left[0]
        seconds = self.ends - time.monotonic()
        return next((c for c in ordered(left, self.costs) if fits(c, self.costs, seconds)), None)

    def _in_time(self, left: list[Candidate]) -> Candidate | None:
        """What is worth most, as long as there is time: nothing comes afterwards."""
        if self.ends is None:
            return left[0]
        return ordered(left, self.costs)[0] if time.monotonic() < self.ends else None

    def _seal(self, pending: list[Candidate]) -> None:
        """Runs shapes with serving settings until a pass in fresh processes adds nothing."""

        def recover() -> None:
            self.work.take_back(self.stores, self.journal.history.vouched)

        for _ in range(MAX_SEAL_PASSES):
            if not pending:
                return
            for name in dict.fromkeys(candidate.model for candidate in pending):
                own = [c for c in pending if c.model == name]
                self.report(Started(Phase.SEAL, name, len(own)))
                self._shapes(Phase.SEAL, own, self._current, _first, recover)
            pending = [c for c in pending if self._done(Phase.SEAL, c) and not self._silent(Phase.SEAL, c)]

    def _prove(self, pending: list[Candidate]) -> None:
        """Runs shapes with serving settings on a copy of the stores, to see that nothing is added."""
        copies: list[Path] = []

        def copied() -> Path:
            if not copies:
                copies.append(self.work.copy(self.stores))
            return copies[0]

        for name in dict.fromkeys(candidate.model for candidate in pending):
            own = [c for c in pending if c.model == name]
            if self.models[name].spec.engine.captures:  # in the order in which a server captures them
                own.sort(key=lambda candidate: -candidate.shape.elements)
            self.report(Started(Phase.PROVE, name, len(own)))
            choose = self._in_time if self._only_proves(name) else _first
            self._shapes(Phase.PROVE, own, copied, choose, copies.clear)

    def _shapes(
        self,
        phase: Phase,
        pending: list[Candidate],
        stores: Callable[[], Path],
        choose: Callable[[list[Candidate]], Candidate | None],
        recover: Callable[[], None],
    ) -> None:
        """Runs shapes until none is left or ``choose`` gives none; those that are left have no place in the budget."""
        left = list(pending)
        attempts: Counter[Candidate] = Counter()
        with self.crew(phase, stores, self.work.logs, self._loaded) as crew:
            while left and (candidate := choose(left)):
                try:
                    ran = crew.run(
                        self.models[candidate.model], candidate.shape, self._deadline(phase, candidate, left)
                    )
                except WorkerFailed as error:
                    crew.kill()
                    self.broken[candidate.model] = str(error)
                    if any(c.model != candidate.model for c in left):  # else it is what the sweep ends with
                        self.report(Note(f"{phase.value} {candidate.model}: {error}"))
                    for other in [c for c in left if c.model == candidate.model]:
                        self.failures[other.model, other.shape] = f"{phase.value}: {error}"
                        left.remove(other)
                    continue
                except WorkerDied as error:
                    crew.kill()
                    recover()
                    attempts[candidate] += 1
                    if attempts[candidate] < ATTEMPTS:
                        self.report(Note(f"{candidate.model} {candidate.shape}: trying again: {error}"))
                        continue
                    self._fail(phase, candidate, str(error))
                else:
                    if ran is None:
                        crew.kill()
                        recover()
                        for other in [c for c in left if c.model == candidate.model]:
                            self.failures[other.model, other.shape] = BUDGET
                            left.remove(other)
                        continue
                    self._record(phase, candidate, ran)
                left.remove(candidate)
                if not any(c.model == candidate.model for c in left):
                    crew.close(candidate.model)
        for candidate in left:
            self.failures[candidate.model, candidate.shape] = BUDGET

    def _deadline(self, phase: Phase, candidate: Candidate, left: list[Candidate]) -> float | None:
        """When a shape in flight is given up, and its model with it.

        What is tuned must still be sealed and proven in time. And a model of which nothing is known yet may not take
        more than half of the time from the others.
        """
        if self.ends is None or phase is not Phase.TUNE:
            return None
        latest = self.ends - self.costs.afterwards()
        if self.costs.known(candidate.model) or all(c.model == candidate.model for c in left):
            return latest
        return (time.monotonic() + latest) / 2

    def _record(self, phase: Phase, candidate: Candidate, ran: Ran) -> None:
        if ran.error:
            self._fail(phase, candidate, ran.error)
            return
        self.journal.ran(phase, candidate.model, ran)
        if phase is Phase.TUNE:
            self.costs.measured(candidate.model, candidate.shape, ran.first_seconds, ran.steady_seconds)
        self.report(Advanced(phase, candidate.model, candidate.shape, ran.first_seconds))

    def _current(self) -> Path:
        current = self.work.stores
        assert current is not None
        return current

    def _loaded(self, model: str, seconds: float) -> None:
        self.costs.load[model] = seconds

    def _fail(self, phase: Phase, candidate: Candidate, reason: str) -> None:
        self.failures[candidate.model, candidate.shape] = f"{phase.value}: {reason}"
        self.report(Advanced(phase, candidate.model, candidate.shape, 0.0, reason))

    def _done(self, phase: Phase, candidate: Candidate) -> Done | None:
        return self.journal.history.find(phase, candidate.model, candidate.shape)

    def _silent(self, phase: Phase, candidate: Candidate) -> bool:
        done = self._done(phase, candidate)
        return done is not None and not done.added


def _doubt(added: Mapping[str, int], misses: Mapping[str, int]) -> str:
    """Why a shape that ran is not proven, empty where it is."""
    grown = [f"{count} new in {store}" for store, count in sorted(added.items())]
    missed = [f"{name} {count}" for name, count in sorted(misses.items())]
    return "; ".join([*grown, *missed])


def _first(left: list[Candidate]) -> Candidate:
    return left[0]
