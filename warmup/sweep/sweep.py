"""One sweep from plans to a bundle: what is left to do, the phases, the proofs, and the bundle at its place."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from handlers.engines.memory import largest_first
from handlers.errors import ModelError
from handlers.loading import Model
from handlers.sources import model_digest
from warmup.bundle.build import build
from warmup.bundle.manifest import Bundle, BundledModel
from warmup.bundle.place import reserved as bundle_place
from warmup.identity import identity as identity_of
from warmup.plan import Plan, expand
from warmup.proof import Proof, ShapeProof
from warmup.stores.registry import STORES, stores_for
from warmup.stores.store import Phase, Store
from warmup.sweep import base as bases
from warmup.sweep import journal as journals
from warmup.sweep.base import Base
from warmup.sweep.budget import Candidate, Costs
from warmup.sweep.crew import Crew
from warmup.sweep.journal import Journal
from warmup.sweep.phases import BUDGET, Phases
from warmup.sweep.progress import Note, Report
from warmup.sweep.unrecorded import unrecorded
from warmup.sweep.workspace import Workspace, WorkspaceError, entries, reserved

SHARD = "shard"  # why a shape is unproven: another part of the sweep has it


@dataclass(frozen=True)
class Request:
    """What to warm, where the bundle goes, seconds to spend (None: what it takes), the part i of n to do, and whether
    to start with empty stores and to prove that outputs are right."""

    models: tuple[Model, ...]
    out: Path
    budget: float | None = None
    shard: tuple[int, int] | None = None
    fresh: bool = False
    verify: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a sweep came to. ``bundle`` is None where nothing could be proven; ``ran`` counts the shapes that were to be
    proven, those included that a budget left out; ``seconds`` is the time of this sweep alone."""

    bundle: Bundle | None
    proofs: tuple[Proof, ...]
    ran: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every shape that was to be proven is. What a budget or a shard leaves for later does not fail."""
        unproven = [shape for proof in self.proofs for shape in proof if not shape.proven]
        return self.bundle is not None and all(shape.reason in (BUDGET, SHARD) for shape in unproven)


@dataclass(frozen=True)
class _Target:
    """A model, what it is, and what of its plan is proven already or to be proven now."""

    model: Model
    digest: str
    engine: str
    plan: Plan
    proven: Mapping[str, ShapeProof]
    wanted: tuple[Candidate, ...]


def sweep(request: Request, report: Report) -> Outcome:
    """Warms the models and leaves a bundle at ``request.out``, built upon the one that is there.

    Raises ModelError on a model that is wrong, and where no model can be loaded; SweepRunning where another sweep is at
    work; WorkspaceError, JournalError and BundleError where the disk is full or not to be written.
    The same request takes it up again.
    """
    try:
        return _sweep(request, report)
    except OSError as error:
        raise WorkspaceError(f"{error.filename or request.out}: {error.strerror or error}") from error


def _sweep(request: Request, report: Report) -> Outcome:
    started = time.monotonic()
    specs = [model.spec for model in request.models]
    stores = stores_for(specs)
    facts = identity_of(specs, stores)
    out = request.out.absolute()
    with reserved(out) as work:
        base = bases.find(out, facts, {store.name: store for store in STORES}, request.fresh)
        if base.note:
            report(Note(base.note))
        targets = [_target(model, facts, base, request.shard) for model in request.models]
        if base.bundle and not any(target.wanted for target in targets) and _unchanged(base, targets, request.shard):
            work.clear()
            return Outcome(base.bundle, tuple(map(_kept, targets)), 0, time.monotonic() - started)
        stores = _all_stores(stores, base)
        with journals.opened(work.journal) as journal:
            _resume(work, journal, base, facts, stores, report)
            for target in targets:
                journal.model(target.model.spec.name, f"{target.digest} {target.engine}{_shared(target)}")
            phases = Phases(
                models={model.spec.name: model for model in request.models},
                stores=stores,
                work=work,
                journal=journal,
                report=report,
                costs=_costs(targets, base),
                ends=None if request.budget is None else started + request.budget,
                crew=partial(Crew, verify=request.verify),
            )
            phases.run([candidate for target in targets for candidate in target.wanted])
            if work.stores is not None:
                for text in unrecorded(request.models, work.stores):
                    report(Note(text))
            proofs = tuple(_proof(target, phases, request.shard) for target in targets)
            if phases.broken.keys() >= {model.spec.name for model in request.models} and not _began(journal, proofs):
                work.clear()
                raise ModelError("; ".join(_naming(name, reason) for name, reason in phases.broken.items()))
            ran = sum(len(target.wanted) for target in targets)
            made = None
            if any(proof.proven() for proof in proofs):
                made = _publish(work, out, base, facts, stores, targets, proofs, request.shard)
        return Outcome(made, proofs, ran, time.monotonic() - started)


def _target(model: Model, facts: Mapping[str, str], base: Base, shard: tuple[int, int] | None) -> _Target:
    name = model.spec.name
    try:
        digest = f"sha256:{model_digest(model.spec, model.folder)}"
    except OSError as error:
        raise ModelError(f"{error.filename}: {error.strerror}") from error
    plan = expand(model.spec, model.folder)
    engine = facts[f"engine.{name}"]
    proven = base.proven(name, digest, engine)
    if model.spec.engine.dynamic_shapes:
        return _Target(model, digest, engine, plan, *_as_a_whole(name, plan, proven, base, shard))
    part = plan.shard(*shard) if shard else plan
    wanted = tuple(Candidate(name, p.shape, p.weight) for p in part if p.shape.text not in proven)
    return _Target(model, digest, engine, plan, proven, wanted)


def _as_a_whole(
    name: str, plan: Plan, proven: Mapping[str, ShapeProof], base: Base, shard: tuple[int, int] | None
) -> tuple[Mapping[str, ShapeProof], tuple[Candidate, ...]]:
    """What is proven of a plan whose shapes share their code, and what is to be: all of it or nothing, since the code
    that one gets depends on the others, in the order in which engines warm them."""
    if shard:
        raise ModelError(f"{name}: engine.dynamic_shapes: code for all shapes is shared, so the plan cannot be divided")
    weights = {planned.shape: planned.weight for planned in plan}
    before = base.plan(name)
    texts = {shape.text for shape in weights}
    if before is not None and {planned.shape.text for planned in before} == texts <= proven.keys():
        return proven, ()
    return {}, tuple(Candidate(name, shape, weights[shape]) for shape in largest_first(weights))


def _shared(target: _Target) -> str:
    """What else the findings about one shape depend on: the other shapes, where they share their code."""
    if not target.model.spec.engine.dynamic_shapes:
        return ""
    texts = sorted(planned.shape.text for planned in target.plan)
    return f" {hashlib.sha256(' '.join(texts).encode()).hexdigest()}"


def _naming(model: str, reason: str) -> str:
    return reason if reason.startswith(f"{model}: ") else f"{model}: {reason}"


def _began(journal: Journal, proofs: tuple[Proof, ...]) -> bool:
    """Whether anything was done that a later sweep could build upon."""
    return any(journal.history.done.values()) or any(proof.proven() for proof in proofs)


def _unchanged(base: Base, targets: list[_Target], shard: tuple[int, int] | None) -> bool:
    """Whether the bundle that is there says all that a new one would say, also of which part of a sweep it is."""
    return base.shard == _shard_text(shard) and all(
        base.plan(target.model.spec.name) == target.plan
        and (found := base.model(target.model.spec.name)) is not None
        and found.version == target.model.spec.version
        for target in targets
    )


def _shard_text(shard: tuple[int, int] | None) -> str:
    return f"{shard[0]}/{shard[1]}" if shard else ""


def _kept(target: _Target) -> Proof:
    shapes = tuple(
        replace(target.proven[planned.shape.text], weight=planned.weight)
        if planned.shape.text in target.proven
        else ShapeProof(planned.shape, planned.weight, False, reason=SHARD)
        for planned in target.plan
    )
    return Proof(target.model.spec.name, shapes)


def _all_stores(stores: tuple[Store, ...], base: Base) -> tuple[Store, ...]:
    """The stores of the swept models, and those that the bundle has for its other models."""
    named = set(base.bundle.manifest.stores) if base.bundle else set()
    return tuple(store for store in STORES if store in stores or store.name in named)


def _costs(targets: list[_Target], base: Base) -> Costs:
    """Starts with what earlier sweeps measured of these models, whether or not it still holds as a proof."""
    costs = Costs.of(target.model.spec for target in targets)
    for target in targets:
        found = base.model(target.model.spec.name)
        for proof in found.proof if found else ():
            if proof.cold_seconds is not None and any(c.shape == proof.shape for c in target.wanted):
                costs.expect(target.model.spec.name, proof.shape, proof.cold_seconds, proof.steady_seconds)
    return costs


def _resume(
    work: Workspace, journal: Journal, base: Base, facts: Mapping[str, str], stores: tuple[Store, ...], report: Report
) -> None:
    """Takes up what a killed sweep of the same kind left, or starts from the bundle that is there."""
    machine = {field: value for field, value in facts.items() if not field.startswith("engine.")}
    upon = base.bundle.digest + ("" if base.intact else " damaged") if base.bundle else "nothing"
    kind = {**machine, "base": upon}
    if journal.history.identity == kind and (work.stores or work.bundle.is_dir()):
        removed = work.take_back(stores, journal.history.vouched)
        done = len(journal.history.done[Phase.TUNE])
        report(Note(f"resuming: {done} shapes are tuned, {len(removed)} unfinished store entries were removed"))
        return
    journal.forget()
    root = work.start_over()
    base.copy_stores(root)
    for store in stores:
        store.relocate(root / store.name)
    journal.begin(kind, entries(stores, root))


def _proof(target: _Target, phases: Phases, shard: tuple[int, int] | None) -> Proof:
    name = target.model.spec.name
    wanted = {candidate.shape for candidate in target.wanted}
    shapes = []
    for planned in target.plan:
        shape = planned.shape
        if shape not in wanted:
            kept = target.proven.get(shape.text)
            shapes.append(
                replace(kept, weight=planned.weight) if kept else ShapeProof(shape, planned.weight, False, reason=SHARD)
            )
            continue
        shapes.append(phases.proof(name, shape, planned.weight))
    if target.model.spec.engine.dynamic_shapes:
        shapes = _all_or_none(shapes)
    return Proof(name, tuple(shapes))


def _all_or_none(shapes: list[ShapeProof]) -> list[ShapeProof]:
    """Of shapes that share their code none is proven where one is not: a server would not warm that one, and the code
    of the others could be another without it."""
    missing = next((shape for shape in shapes if not shape.proven), None)
    if missing is None:
        return shapes
    why = missing.reason if missing.reason == BUDGET else f"shares its code with {missing.shape}, which is not proven"
    return [replace(shape, proven=False, reason=why) if shape.proven else shape for shape in shapes]


def _publish(
    work: Workspace,
    out: Path,
    base: Base,
    facts: Mapping[str, str],
    stores: tuple[Store, ...],
    targets: list[_Target],
    proofs: tuple[Proof, ...],
    shard: tuple[int, int] | None,
) -> Bundle:
    names = frozenset(target.model.spec.name for target in targets)
    others = base.others(names)
    kept = base.bundle.manifest.identity if base.bundle else {}
    identity = {
        field: value
        for field, value in kept.items()
        if "." in field and (not field.startswith("engine.") or field.removeprefix("engine.") in others)
    }
    models = others | {
        proof.model: BundledModel(target.model.spec.version, target.digest, target.plan, proof)
        for target, proof in zip(targets, proofs, strict=True)
    }
    with bundle_place(out) as place:
        root = work.hand_over()
        made = build(
            root,
            identity={**identity, **facts},
            models=models,
            stores=stores,
            shard=_shard_text(shard),
        )
        place.commit(root)
    work.clear()
    return replace(made, root=out)
