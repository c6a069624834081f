"""Looking at a bundle where it is, without taking it: its manifest alone, or every byte of it."""

from __future__ import annotations

from dataclasses import dataclass

from warmup.bundle.files import BundleRefused, copy
from warmup.bundle.location import locate
from warmup.bundle.manifest import Manifest, manifest_digest
from warmup.bundle.pull import Advance
from warmup.bundle.source import opened


@dataclass(frozen=True)
class Seen:
    """What is said at a location: the manifest, the bundle's digest, and its signature file's content if it has one."""

    manifest: Manifest
    digest: str
    signature: bytes | None


def look(location: str) -> Seen:
    """The manifest at a location; no other file is looked at, and nothing is said about trust."""
    where = locate(location)
    with opened(where) as source:
        return Seen(_manifest(source.manifest, where.text), manifest_digest(source.manifest), source.signature)


def check(location: str, advance: Advance | None = None) -> Seen:
    """Reads every file at a location; raises BundleRefused naming the one that is damaged, missing or in excess."""
    where = locate(location)
    with opened(where) as source:
        manifest = _manifest(source.manifest, where.text)
        for name, content in source.files(manifest):
            copy(content, None, manifest.files[name], f"{where.text}: {name}")
            if advance is not None:
                advance(manifest.files[name].size)
        return Seen(manifest, manifest_digest(source.manifest), source.signature)


def _manifest(data: bytes, where: str) -> Manifest:
    try:
        return Manifest.from_bytes(data)
    except BundleRefused as error:
        raise BundleRefused(f"{where}: {error}") from error
