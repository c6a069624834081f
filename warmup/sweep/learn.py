"""One more shape for a server at work: tuned, sealed and proven in processes of its own, on a copy of its stores."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from handlers.loading import Model
from handlers.shapes import Shape
from warmup.proof import ShapeProof
from warmup.stores.store import Store
from warmup.sweep import journal as journals
from warmup.sweep.budget import Candidate, Costs
from warmup.sweep.crew import Crew
from warmup.sweep.phases import Phases
from warmup.sweep.process import WorkerProcess
from warmup.sweep.workspace import Workspace, entries


@dataclass(frozen=True)
class Learnt:
    """What came of a shape, and the stores in which it is warm."""

    proof: ShapeProof
    stores: Path


def learn(
    model: Model,
    shape: Shape,
    served: Path,
    stores: Iterable[Store],
    place: Path,
    started: Callable[[WorkerProcess], None],
) -> Learnt:
    """Proves a shape upon a copy of the stores in ``served``; works in ``place``, of which nothing of before is kept.

    ``started`` is told of every process that begins; it may raise, which ends the work. The caller's thread must live
    as long as the processes are to.
    """
    stores = tuple(stores)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    work = Workspace(place)
    root = work.start_over()
    for store in stores:
        if (served / store.name).is_dir():
            shutil.copytree(served / store.name, root / store.name)
            store.tidy(root / store.name)
            store.relocate(root / store.name)
    with journals.opened(work.journal) as journal:
        journal.begin({}, entries(stores, root))
        name = model.spec.name
        phases = Phases(
            models={name: model},
            stores=stores,
            work=work,
            journal=journal,
            report=lambda event: None,
            costs=Costs.of([model.spec]),
            ends=None,
            crew=partial(Crew, started=started),
        )
        phases.run([Candidate(name, shape, 0.0)])
        current = work.stores
        assert current is not None
        return Learnt(phases.proof(name, shape, 0.0), current)


def admit(learnt: Path, served: Path, stores: Iterable[Store]) -> dict[str, dict[str, str]]:
    """Adds to the stores of a running server what was learnt; the entries that are new there, by store."""
    added = {}
    for store in stores:
        if not (learnt / store.name).is_dir():
            continue
        before = store.entries(served / store.name)
        store.merge(served / store.name, [learnt / store.name])
        after = store.entries(served / store.name)
        added[store.name] = {key: value for key, value in after.items() if before.get(key) != value}
    return added
