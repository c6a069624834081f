"""Joins the bundles of a sharded sweep (``preheat warm --shard i/n``) into one.

A proof says that a run of the shape added nothing to the stores as they were then. Stores are read by key. So a shape
stays proven in the joined bundle if every entry of its shard's stores is there bit for bit: what the run looked up is
still what it finds, and what other shards added has other keys. Where a merge had to choose between two contents of one
entry, all shapes of the shard whose content was not taken become unproven, with a reason, until a fresh process proves
them on the joined stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from warmup.bundle.build import build
from warmup.bundle.files import STORES, BundleError, BundleRefused
from warmup.bundle.manifest import Bundle, BundledModel, verify
from warmup.bundle.place import reserved
from warmup.identity import differences
from warmup.plan import Plan, PlannedShape
from warmup.proof import Proof, ShapeProof
from warmup.stores.store import MergeReport, Store

NEEDS_PROVE = "needs prove"
OTHER_SHARD = "shard"  # the reason that a sweep gives for shapes which it left to other shards


class MergeRefused(BundleRefused):
    """Bundles that do not belong together; the message names every field that differs."""


@dataclass(frozen=True)
class Merged:
    """The joined bundle, what each store's merge did, and which shapes (model, shape, reason) it made unproven."""

    bundle: Bundle
    reports: Mapping[str, MergeReport]
    unproven: tuple[tuple[str, str, str], ...]


def merge(bundles: Sequence[Bundle], into: Path, stores: Iterable[Store]) -> Merged:
    """Joins trusted local bundles into the new directory ``into``; ``stores`` are the stores known here.

    Shards must be complete: 1/n to n/n. Bundles of whole sweeps can be joined too.

    Raises MergeRefused where identity, models or plans disagree, a shard is missing or there twice; BundleError where
    a store is unknown here, a bundle is not trusted, or ``into`` is not empty; BundleRefused on a damaged bundle.
    """
    if len(bundles) < 2:
        raise BundleError(f"{len(bundles)} bundle given, at least 2 are needed for a merge")
    for bundle in bundles:
        if not bundle.trusted:
            raise BundleError(f"{bundle.root} is not trusted, and what is made of it here would be")
        verify(bundle)
    bundles = _in_order(bundles)
    _check_identity(bundles)
    known = {store.name: store for store in stores}
    wanted = sorted({name for bundle in bundles for name in bundle.manifest.stores})
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise BundleError(f"stores {', '.join(unknown)} are unknown here; known: {', '.join(sorted(known))}")
    into = into.absolute()
    with reserved(into) as place:
        if into.exists() and (not into.is_dir() or any(into.iterdir())):
            raise BundleError(f"{into} is there already")
        root = place.staging / "bundle"
        root.mkdir()  # models that need no store, as those in plain Python, leave a bundle of a manifest alone
        reports = {name: _merge_store(known[name], bundles, root / STORES / name) for name in wanted}
        lost = {bundle.digest: _lost(bundle, known, root) for bundle in bundles}
        models, unproven = _join_models(bundles, lost)
        built = build(
            root,
            identity={field: value for bundle in bundles for field, value in bundle.manifest.identity.items()},
            models=models,
            stores=[known[name] for name in wanted],
        )
        place.commit(root)
    return Merged(replace(built, root=into), reports, unproven)


def _in_order(bundles: Sequence[Bundle]) -> list[Bundle]:
    """The bundles by shard; raises MergeRefused where they are not all whole or all the shards of one sweep."""
    shards = [bundle.manifest.shard for bundle in bundles]
    if not any(shards):
        return list(bundles)
    whole = [str(bundle.root) for bundle in bundles if not bundle.manifest.shard]
    if whole:
        raise MergeRefused(f"{whole[0]} is of a whole sweep, the others are shards: {', '.join(filter(None, shards))}")
    counts = {shard.split("/")[1] for shard in shards}
    if len(counts) > 1:
        raise MergeRefused(f"shards of sweeps that were cut differently: {', '.join(shards)}")
    count = int(counts.pop())
    twice = sorted({shard for shard in shards if shards.count(shard) > 1})
    missing = [f"{i}/{count}" for i in range(1, count + 1) if f"{i}/{count}" not in shards]
    if twice or missing:
        problems = [f"{', '.join(found)} {what}" for found, what in ((missing, "missing"), (twice, "twice")) if found]
        raise MergeRefused(f"shards {'; '.join(problems)}")
    return sorted(bundles, key=lambda bundle: int(bundle.manifest.shard.split("/")[0]))


def _check_identity(bundles: Sequence[Bundle]) -> None:
    first, *others = bundles
    problems = [
        f"{other.root}: {difference}"
        for other in others
        for difference in differences(first.manifest.identity, other.manifest.identity)
    ]
    if problems:
        raise MergeRefused(f"not the same identity as {first.root}: {'; '.join(problems)}")


def _merge_store(store: Store, bundles: Sequence[Bundle], into: Path) -> MergeReport:
    into.mkdir(parents=True)
    sources = [bundle.stores / store.name for bundle in bundles]
    return store.merge(into, [source for source in sources if source.is_dir()])


def _lost(bundle: Bundle, known: Mapping[str, Store], root: Path) -> str:
    """Why the proofs of a bundle do not hold for the joined stores, or nothing."""
    for name in bundle.manifest.stores:
        source = bundle.stores / name
        mine = known[name].entries(source) if source.is_dir() else {}
        joined = known[name].entries(root / STORES / name)
        gone = sorted(key for key, value in mine.items() if joined.get(key) != value)
        if gone:
            part = bundle.manifest.shard or bundle.digest
            return f"{NEEDS_PROVE}: the merge did not keep {len(gone)} entries of {part} in {name}, as {gone[0]}"
    return ""


def _join_models(
    bundles: Sequence[Bundle], lost: Mapping[str, str]
) -> tuple[dict[str, BundledModel], tuple[tuple[str, str, str], ...]]:
    models: dict[str, BundledModel] = {}
    for bundle in bundles:
        for name, model in bundle.manifest.models.items():
            demoted = replace(model, proof=_demoted(model.proof, lost[bundle.digest]))
            models[name] = _join(models[name], demoted, name, bundle.root) if name in models else demoted
    for name, model in models.items():
        _check_weights(name, model.plan)
    unproven = tuple(
        (name, proof.shape.text, proof.reason)
        for name, model in models.items()
        for proof in model.proof
        if proof.reason.startswith(NEEDS_PROVE)
    )
    return models, unproven


def _demoted(proof: Proof, reason: str) -> Proof:
    if not reason:
        return proof
    return replace(proof, shapes=tuple(replace(s, proven=False, reason=reason) if s.proven else s for s in proof))


def _join(left: BundledModel, right: BundledModel, name: str, root: Path) -> BundledModel:
    for field in ("version", "digest"):
        mine, theirs = getattr(left, field), getattr(right, field)
        if mine != theirs:
            raise MergeRefused(f"model {name}: {field} is {theirs} in {root}, {mine} in the others")
    weights = {planned.shape: planned.weight for planned in left.plan}
    for planned in right.plan:
        if weights.setdefault(planned.shape, planned.weight) != planned.weight:
            raise MergeRefused(
                f"model {name}: the weight of {planned.shape} is {planned.weight} in {root}, "
                f"{weights[planned.shape]} in the others: they are of different plans"
            )
    proofs: dict = {}
    for proof in (*left.proof, *right.proof):
        proofs[proof.shape] = _better(proofs.get(proof.shape), proof)
    ordered = sorted(weights.items(), key=lambda item: (-item[1], item[0].text))
    return BundledModel(
        version=left.version,
        digest=left.digest,
        plan=Plan(name, tuple(PlannedShape(shape, weight) for shape, weight in ordered)),
        proof=Proof(name, tuple(proofs[shape] for shape, _ in ordered)),
    )


def _better(left: ShapeProof | None, right: ShapeProof) -> ShapeProof:
    """Of two proofs of one shape the proven one, else the one that was run, else the one that says why it was not."""
    if left is None:
        return right
    return max(left, right, key=lambda p: (p.proven, p.first_seconds is not None, p.reason not in ("", OTHER_SHARD)))


def _check_weights(name: str, plan: Plan) -> None:
    total = sum(planned.weight for planned in plan)
    if total < 1 - 1e-6:
        raise MergeRefused(f"model {name}: shapes with {1 - total:.1%} of the planned traffic are in no bundle")
