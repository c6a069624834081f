"""A bundle's manifest: what the bundle is for, what was proven, and the digest of every file in it.

    bundle = open_bundle(Path("out"))             reads and verifies a bundle that is on this machine already
    bundle.digest                                 "sha256:..." of the manifest's bytes: the name of the whole bundle
    bundle.manifest.identity                      dict of field to value, see ``warmup/identity.py``
    bundle.manifest.models["digits"].plan         warmup.plan.Plan;  .proof: warmup.proof.Proof
    bundle.stores                                 the directory with one directory per store, by the store's name

On disk a bundle is ``manifest.json``, optionally ``manifest.sig``, and ``stores/<store>/...``; nothing else may be in
it. Manifests are JSON of the format described in docs/bundles.md, read strictly and never unpickled.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from handlers.shapes import Shape, ShapeError
from warmup.bundle import document
from warmup.bundle.document import DocumentError
from warmup.bundle.files import (
    MANIFEST,
    SIGNATURE,
    STORES,
    BundleError,
    BundleRefused,
    FileDigest,
    copy,
    regular,
    walk,
)
from warmup.plan import Plan, PlannedShape
from warmup.proof import OutputsProof, Proof, ShapeProof

FORMAT = 1
MAX_MANIFEST = 64 << 20  # bytes; a manifest of 100,000 files has about 20 MB
MAX_FILES = 500_000

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HEX = re.compile(r"[0-9a-f]{64}")
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_SHARD = re.compile(r"[1-9]\d{0,5}/[1-9]\d{0,5}", re.ASCII)


@dataclass(frozen=True)
class BundledModel:
    """A model as it was warmed: ``digest`` ("sha256:..." of its files), its plan, and what was proven of the plan."""

    version: str
    digest: str
    plan: Plan
    proof: Proof


@dataclass(frozen=True)
class StoreSummary:
    """How many entries a store holds (counted by the store) and how many bytes its files have."""

    entries: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """Everything a bundle says about itself.

    ``created`` is UTC in ISO 8601 to the second, ``shard`` is "i/n" for a part of a sweep and empty for a whole one,
    ``files`` maps relative POSIX paths, all under ``stores/<store>/``, to digests.
    """

    created: str
    identity: Mapping[str, str]
    models: Mapping[str, BundledModel]
    stores: Mapping[str, StoreSummary]
    files: Mapping[str, FileDigest]
    shard: str = ""
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def to_bytes(self) -> bytes:
        return document.dump(
            {
                "format": self.format,
                "created": self.created,
                "shard": self.shard,
                "identity": dict(self.identity),
                "models": {
                    name: {
                        "version": model.version,
                        "digest": model.digest,
                        "plan": [{"shape": planned.shape.text, "weight": planned.weight} for planned in model.plan],
                        "proof": [{**proof.to_json(), "reason": _one_line(proof.reason)} for proof in model.proof],
                    }
                    for name, model in self.models.items()
                },
                "stores": {name: {"entries": s.entries, "bytes": s.bytes} for name, s in self.stores.items()},
                "files": {name: {"sha256": f.sha256, "size": f.size} for name, f in self.files.items()},
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Reads a manifest; raises BundleRefused naming the key that is wrong, or the formats that are supported."""
        try:
            return _manifest(data)
        except DocumentError as error:
            raise BundleRefused(f"{MANIFEST}: {error}") from error


@dataclass(frozen=True)
class Bundle:
    """A bundle in a local directory. ``trusted`` says why it may be used, and is empty where nobody asked."""

    root: Path
    manifest: Manifest
    digest: str
    trusted: str = field(default="", compare=False)

    @property
    def stores(self) -> Path:
        """The directory of the stores: ``stores/<name of the store>``."""
        return self.root / STORES


def manifest_digest(data: bytes) -> str:
    """The name of a bundle: "sha256:" and the SHA-256 of its manifest's bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_digest(text: str) -> bool:
    """Whether a text is "sha256:" and 64 lowercase hex digits."""
    return _DIGEST.fullmatch(text) is not None


def open_bundle(path: Path) -> Bundle:
    """The bundle in the local directory ``path``, with every file verified where it lies.

    Says nothing about trust: to use a bundle that comes from elsewhere, take it through ``pull``.

    Raises BundleRefused naming the file that is damaged, missing or not in the manifest; BundleError where there is no
    bundle.
    """
    bundle = read_bundle(path)
    verify(bundle)
    return bundle


def read_bundle(path: Path) -> Bundle:
    """The bundle in a local directory by its manifest alone: no other file is looked at."""
    try:
        with regular(path / MANIFEST) as file:
            data = file.read(MAX_MANIFEST + 1)
    except FileNotFoundError as error:
        raise BundleError(f"{path}: no bundle here: {MANIFEST} is missing") from error
    except OSError as error:
        raise BundleError(f"{path / MANIFEST}: {error.strerror}") from error
    try:
        return Bundle(path, Manifest.from_bytes(data), manifest_digest(data))
    except BundleRefused as error:
        raise BundleRefused(f"{path}: {error}") from error


def verify(bundle: Bundle) -> None:
    """Checks that the files on disk are those of the manifest, to the byte; raises BundleRefused naming the file."""
    expected = bundle.manifest.files
    found = walk(bundle.root)
    check_names(bundle.manifest, set(found), str(bundle.root))
    for name, wanted in expected.items():
        try:
            with regular(bundle.root / name) as file:
                copy(file, None, wanted, f"{bundle.root}: {name}")
        except OSError as error:
            raise BundleError(f"{bundle.root / name}: {error.strerror}") from error


def check_names(manifest: Manifest, found: set[str], where: str) -> None:
    """Raises BundleRefused where files are missing or in excess; ``found`` are relative paths, manifest included."""
    missing = sorted(manifest.files.keys() - found)
    if missing:
        raise BundleRefused(f"{where}: {_some(missing)} missing")
    excess = sorted(found - manifest.files.keys() - {MANIFEST, SIGNATURE})
    if excess:
        raise BundleRefused(f"{where}: {_some(excess)} not in the manifest")


def _one_line(reason: str) -> str:
    """A reason as a document takes it: it may quote an error of several lines, or of any length."""
    return "".join(c if c.isprintable() else " " for c in reason)[: document.MAX_TEXT]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'}"


def _manifest(data: bytes) -> Manifest:
    top = document.parse(data, MAX_MANIFEST)
    version = document.count(top.get("format"), "format")
    if version != FORMAT:
        raise DocumentError(f"format {version} is not supported; this version of preheat reads format {FORMAT}")
    top = document.keys(top, "", ("format", "created", "shard", "identity", "models", "stores", "files"))
    stores = document.each(top["stores"], "stores", _store)
    for name in stores:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise DocumentError(f"stores.{name!r}: not the name of a store")
    files = document.each(top["files"], "files", _file)
    _check_paths(files, stores)
    for name, summary in stores.items():
        size = sum(file.size for path, file in files.items() if path.split("/", 2)[1] == name)
        if size != summary.bytes:
            raise DocumentError(f"stores.{name}.bytes: {summary.bytes}, but the files of that store have {size}")
    models = document.mapping(top["models"], "models")
    return Manifest(
        created=_matching(_CREATED, top["created"], "created", "UTC as in 2026-01-31T12:00:00Z"),
        shard=_matching(_SHARD, top["shard"], "shard", 'i/n as in 1/4, or ""') if top["shard"] != "" else "",
        identity=document.each(top["identity"], "identity", document.text),
        models={document.text(name, "models"): _model(name, value) for name, value in models.items()},
        stores=stores,
        files=files,
    )


def _model(name: str, value: object) -> BundledModel:
    where = f"models.{name}"
    found = document.keys(value, where, ("version", "digest", "plan", "proof"))
    plan = document.items(found["plan"], f"{where}.plan", _planned)
    proof = document.items(found["proof"], f"{where}.proof", _proof)
    planned = [item.shape for item in plan]
    proven = [item.shape for item in proof]
    for key, shapes in (("plan", planned), ("proof", proven)):
        if len(set(shapes)) != len(shapes):
            raise DocumentError(f"{where}.{key}: a shape is there twice")
    stray = sorted(shape.text for shape in set(planned) ^ set(proven))
    if stray:
        raise DocumentError(f"{where}: {stray[0]} is in only one of plan and proof")
    return BundledModel(
        version=document.text(found["version"], f"{where}.version"),
        digest=_matching(_DIGEST, found["digest"], f"{where}.digest", "sha256: and 64 lowercase hex digits"),
        plan=Plan(name, plan),
        proof=Proof(name, proof),
    )


def _planned(value: object, where: str) -> PlannedShape:
    found = document.keys(value, where, ("shape", "weight"))
    return PlannedShape(_shape(found["shape"], f"{where}.shape"), document.number(found["weight"], f"{where}.weight"))


def _proof(value: object, where: str) -> ShapeProof:
    seconds = ("cold_seconds", "first_seconds", "steady_seconds")
    given = {"outputs": None, **document.mapping(value, where)}  # bundles from before outputs were compared lack it
    found = document.keys(given, where, ("shape", "weight", "proven", *seconds, "added", "reason", "outputs"))
    proven = document.truth(found["proven"], f"{where}.proven")
    added = document.each(found["added"], f"{where}.added", document.count)
    grown = [store for store, entries in added.items() if entries]
    if proven and grown:
        raise DocumentError(f"{where}: proven, but its run added entries to {', '.join(grown)}")
    return ShapeProof(
        shape=_shape(found["shape"], f"{where}.shape"),
        weight=document.number(found["weight"], f"{where}.weight"),
        proven=proven,
        added=added,
        reason=document.text(found["reason"], f"{where}.reason"),
        outputs=document.optional(found["outputs"], f"{where}.outputs", _outputs),
        **{key: document.optional(found[key], f"{where}.{key}", document.number) for key in seconds},
    )


def _outputs(value: object, where: str) -> OutputsProof:
    numbers = ("tolerance", "absolute", "relative", "cosine")
    found = document.keys(value, where, ("against", *numbers))
    return OutputsProof(
        document.text(found["against"], f"{where}.against"),
        **{key: document.number(found[key], f"{where}.{key}") for key in numbers},
    )


def _shape(value: object, where: str) -> Shape:
    text = document.text(value, where)
    try:
        shape = Shape.parse(text)
    except ShapeError as error:
        raise DocumentError(f"{where}: {error}") from error
    if shape.text != text:
        raise DocumentError(f"{where}: {text!r} is not canonical; expected {shape.text!r}")
    return shape


def _store(value: object, where: str) -> StoreSummary:
    found = document.keys(value, where, ("entries", "bytes"))
    return StoreSummary(
        document.count(found["entries"], f"{where}.entries"), document.count(found["bytes"], f"{where}.bytes")
    )


def _file(value: object, where: str) -> FileDigest:
    found = document.keys(value, where, ("sha256", "size"))
    return FileDigest(
        _matching(_HEX, found["sha256"], f"{where}.sha256", "64 lowercase hex digits"),
        document.count(found["size"], f"{where}.size"),
    )


def _matching(pattern: re.Pattern[str], value: object, where: str, wanted: str) -> str:
    text = document.text(value, where)
    if not pattern.fullmatch(text):
        raise DocumentError(f"{where}: expected {wanted}, found {text[:100]!r}")
    return text


def _check_paths(files: Mapping[str, FileDigest], stores: Mapping[str, StoreSummary]) -> None:
    """Every path is ``stores/<store>/...``, leads nowhere else, and is no directory of another path."""
    if len(files) > MAX_FILES:
        raise DocumentError(f"files: {len(files)} files, at most {MAX_FILES} are allowed")
    for path in files:
        parts = path.split("/")
        if len(parts) < 3 or parts[0] != STORES or parts[1] not in stores:
            raise DocumentError(f"files.{path[:200]!r}: not under {STORES}/<a store of this bundle>/")
        if any(part in ("", ".", "..") or "\\" in part for part in parts):
            raise DocumentError(f"files.{path[:200]!r}: not a plain relative path")
        if any(len(part.encode()) > 255 for part in parts) or len(path.encode()) > 2048:
            raise DocumentError(f"files.{path[:200]!r}: the path is too long")
        for depth in range(3, len(parts)):
            if "/".join(parts[:depth]) in files:
                raise DocumentError(f"files.{path[:200]!r}: {'/'.join(parts[:depth])!r} is a file too")
