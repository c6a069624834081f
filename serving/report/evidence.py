"""What a report is made of: proofs from a bundle or from ``preheat warm --json``, runs of ``preheat bench``, and how
much of a plan a MIOpen database covers (``preheat plan --db ... --json``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handlers.shapes import Shape, ShapeError
from serving.bench.result import BenchResult, read_result
from warmup.bundle.files import BundleError
from warmup.bundle.manifest import Manifest, read_bundle
from warmup.coverage import Comparison
from warmup.proof import Proof, ShapeProof


class EvidenceError(ValueError):
    """A file that is not what the report was told it is."""


@dataclass(frozen=True)
class Warmed:
    """What was warmed: a proof for each model, and for which hardware and software, where that is written down."""

    proofs: tuple[Proof, ...]
    identity: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True)
class CoveredShape:
    """How many of a shape's convolution problems a database has records for, and the times that these predict.

    ``best_ms`` is of all covered problems with the fastest solver of each, None where no record has a time; ``default``
    and ``naive`` are slower choices, over the problems for which both times are known.
    """

    shape: Shape
    weight: float
    problems: int
    covered: int
    best_ms: float | None = None
    default: Comparison | None = None
    naive: Comparison | None = None


@dataclass(frozen=True)
class Coverage:
    """How much of a model's plan databases cover; ``share`` is of the distinct problems, from 0 to 1."""

    model: str
    databases: tuple[str, ...]
    share: float
    shapes: tuple[CoveredShape, ...]
    device: str | None = None


@dataclass(frozen=True)
class Evidence:
    """Everything that one report shows."""

    warmed: Warmed | None = None
    runs: tuple[BenchResult, ...] = ()
    coverage: Coverage | None = None

    def models(self) -> tuple[str, ...]:
        """All models that anything is known of, in order of appearance."""
        proofs = self.warmed.proofs if self.warmed else ()
        names = [proof.model for proof in proofs] + [run.model for run in self.runs]
        return tuple(dict.fromkeys(names))

    def proof(self, model: str) -> Proof | None:
        return next((proof for proof in (self.warmed.proofs if self.warmed else ()) if proof.model == model), None)

    def runs_of(self, model: str) -> tuple[BenchResult, ...]:
        return tuple(run for run in self.runs if run.model == model)


def gather(warm: Path | None, benches: Sequence[Path], coverage: Path | None) -> Evidence:
    """Reads all files; raises EvidenceError or ResultError naming the one that is wrong."""
    return Evidence(
        warmed=read_warmed(warm) if warm else None,
        runs=tuple(map(read_result, benches)),
        coverage=read_coverage(coverage) if coverage else None,
    )


def read_warmed(path: Path) -> Warmed:
    """Proofs from a bundle's folder, a manifest, or what ``preheat warm --json`` printed."""
    if path.is_dir():
        return _bundle(path)
    document = _json(path)
    try:
        if "format" in document:
            return _manifest(Manifest.from_bytes(path.read_bytes()), "")
        proofs = [
            Proof(str(name), tuple(map(ShapeProof.from_json, model["shapes"])))
            for name, model in document["models"].items()
        ]
        return Warmed(tuple(proofs), digest=str(document.get("bundle") or ""))
    except (KeyError, TypeError, AttributeError, ValueError, BundleError) as error:
        raise EvidenceError(f"{path}: neither a bundle's manifest nor the JSON of preheat warm: {error}") from error


def read_coverage(path: Path) -> Coverage:
    """What ``preheat plan MODEL --db ... --json`` printed."""
    document = _json(path)
    try:
        return Coverage(
            model=str(document["model"]),
            databases=tuple(map(str, document["databases"])),
            share=float(document["covered"]),
            device=document["device"],
            shapes=tuple(
                CoveredShape(
                    Shape.parse(entry["shape"]),
                    float(entry["weight"]),
                    int(entry["problems"]),
                    int(entry["covered"]),
                    entry["predicted_ms"],
                    Comparison.from_json(entry["default"]),
                    Comparison.from_json(entry["naive"]),
                )
                for entry in document["shapes"]
            ),
        )
    except (KeyError, TypeError, AttributeError, ShapeError, ValueError) as error:
        raise EvidenceError(f"{path}: not the JSON of preheat plan with --db: {error!r}") from error


def _bundle(path: Path) -> Warmed:
    try:
        bundle = read_bundle(path)
    except BundleError as error:
        raise EvidenceError(str(error)) from error
    return _manifest(bundle.manifest, bundle.digest)


def _manifest(manifest: Manifest, digest: str) -> Warmed:
    return Warmed(tuple(model.proof for model in manifest.models.values()), manifest.identity, digest)


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise EvidenceError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise EvidenceError(f"{path}: expected a JSON object, found {type(document).__name__}")
    return document
