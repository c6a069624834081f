"""What differs between two bundles: for people who ask why one is refused, or what a new sweep changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warmup.bundle.manifest import BundledModel, Manifest


@dataclass(frozen=True)
class Difference:
    """One thing that is otherwise on the right than on the left; None where it is absent on that side.

    ``what`` says which part of the manifest: identity, model, shape, store or file; ``name`` which one of it.
    """

    what: str
    name: str
    left: str | None
    right: str | None


def differences(left: Manifest, right: Manifest) -> tuple[Difference, ...]:
    """Everything that differs but times: identity first, then models, their shapes, stores and files."""
    return (
        *_compare("identity", left.identity, right.identity),
        *_compare("model", _models(left.models), _models(right.models)),
        *_compare("shape", _shapes(left.models), _shapes(right.models)),
        *_compare("store", _stores(left), _stores(right)),
        *_compare("file", _files(left), _files(right)),
    )


def _compare(what: str, left: Mapping[str, str], right: Mapping[str, str]) -> list[Difference]:
    names = sorted(left.keys() | right.keys())
    return [Difference(what, n, left.get(n), right.get(n)) for n in names if left.get(n) != right.get(n)]


def _models(models: Mapping[str, BundledModel]) -> dict[str, str]:
    return {name: f"version {model.version}, {model.digest}" for name, model in models.items()}


def _shapes(models: Mapping[str, BundledModel]) -> dict[str, str]:
    return {
        f"{name} {proof.shape}": "proven" if proof.proven else f"unproven ({proof.reason or 'new entries'})"
        for name, model in models.items()
        for proof in model.proof
    }


def _stores(manifest: Manifest) -> dict[str, str]:
    return {name: f"{store.entries} entries, {store.bytes} bytes" for name, store in manifest.stores.items()}


def _files(manifest: Manifest) -> dict[str, str]:
    return {name: f"sha256:{file.sha256}, {file.size} bytes" for name, file in manifest.files.items()}
