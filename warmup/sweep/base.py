"""What is at ``--out`` already: a bundle to build upon, or a reason to start with empty stores."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warmup.bundle.files import BundleError, BundleRefused, copy, created, regular
from warmup.bundle.manifest import Bundle, BundledModel, Manifest, manifest_digest
from warmup.bundle.manifest import verify as verify_bundle
from warmup.bundle.source import Directory
from warmup.bundle.trust import Trust
from warmup.identity import differences
from warmup.plan import Plan
from warmup.proof import ShapeProof
from warmup.stores.store import Store


@dataclass(frozen=True)
class Base:
    """A trusted bundle of this identity. ``intact`` means that every file is what the manifest says, so that its
    proofs still hold; ``note`` says why there is less than one might think."""

    bundle: Bundle | None = None
    intact: bool = False
    note: str = ""

    @property
    def shard(self) -> str:
        """``i/n`` of a bundle that is a part of a sweep, else empty."""
        return self.bundle.manifest.shard if self.bundle else ""

    def proven(self, model: str, digest: str, engine: str) -> dict[str, ShapeProof]:
        """The proofs that hold for a model of this digest and engine, by shape text."""
        found = self.model(model)
        if found is None or not self.intact or found.digest != digest or self._engine(model) != engine:
            return {}
        return {proof.shape.text: proof for proof in found.proof.proven()}

    def model(self, name: str) -> BundledModel | None:
        return self.bundle.manifest.models.get(name) if self.bundle else None

    def plan(self, model: str) -> Plan | None:
        found = self.model(model)
        return found.plan if found else None

    def others(self, models: frozenset[str]) -> dict[str, BundledModel]:
        """The bundle's models beside these ones, as long as what was proven of them holds."""
        if self.bundle is None or not self.intact:
            return {}
        return {name: model for name, model in self.bundle.manifest.models.items() if name not in models}

    def copy_stores(self, into: Path) -> None:
        """Copies every file of the stores that is what the manifest says; damaged ones are left behind."""
        if self.bundle is None:
            return
        for name, expected in self.bundle.manifest.files.items():
            target = into / Path(name).relative_to("stores")
            try:
                with regular(self.bundle.root / name) as source, created(target) as file:
                    copy(source, file, expected, name)
            except (BundleRefused, FileNotFoundError):
                target.unlink(missing_ok=True)
                continue
            shutil.copystat(self.bundle.root / name, target)

    def _engine(self, model: str) -> str:
        return self.bundle.manifest.identity.get(f"engine.{model}", "") if self.bundle else ""


def find(out: Path, identity: Mapping[str, str], stores: Mapping[str, Store], fresh: bool) -> Base:
    """The bundle at ``out``, if it may be built upon.

    Raises BundleError where something else than a bundle is there, which a sweep must not replace.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return Base()
    if not out.is_dir() or not (out / "manifest.json").is_file():
        raise BundleError(f"{out} is there already and holds no bundle; choose another --out")
    if fresh:
        return Base(note=f"{out}: starting with empty stores, as asked")
    try:
        there = Directory(out)
        digest = manifest_digest(there.manifest)
        Trust().reason(digest, there.signature, str(out))  # before a stranger's text is parsed
        bundle = Bundle(out, Manifest.from_bytes(there.manifest), digest)
    except BundleRefused as error:
        return Base(note=f"starting with empty stores: {error}")
    shared = {field: value for field, value in identity.items() if not field.startswith("engine.")}
    differing = differences(bundle.manifest.identity, shared)
    if differing:
        reasons = "; ".join(map(str, differing))
        return Base(note=f"{out} was made for something else, so starting with empty stores: {reasons}")
    strange = bundle.manifest.stores.keys() - stores.keys()
    if strange:
        return Base(note=f"{out} holds stores that this version does not know: {', '.join(sorted(strange))}")
    try:
        verify_bundle(bundle)
    except BundleRefused as error:
        return Base(bundle, note=f"proving everything again: {error}")
    return Base(bundle, intact=True)
