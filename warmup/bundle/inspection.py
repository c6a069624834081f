"""Looking at a bundle where it is, without taking it: its manifest alone, or every byte of it."""

from __future__ import annotations

from dataclasses import dataclass

from warmup.bundle.files import BundleRefused, copy
from warmup.bundle.location import locate
from warmup.bundle.manifest import Manifest, manifest_digest
from warmup.bundle.pull import Advance
from warmup.bundle.source import opened
from warmup.bundle.trust import Trust


@dataclass(frozen=True)
class Seen:
    """What is said at a location: the manifest, the bundle's digest, its signature file's content if it has one, and
    why it is trusted where that was asked."""

    manifest: Manifest
    digest: str
    signature: bytes | None
    trusted: str = ""


def digest_at(location: str) -> str:
    """The digest of the bundle at a location. Nothing of the manifest is parsed."""
    with opened(locate(location)) as source:
        return manifest_digest(source.manifest)


def look(location: str) -> Seen:
    """The manifest at a location; no other file is looked at, and nothing is said about trust."""
    where = locate(location)
    with opened(where) as source:
        return Seen(_manifest(source.manifest, where.text), manifest_digest(source.manifest), source.signature)


def check(location: str, advance: Advance | None = None, trust: Trust | None = None) -> Seen:
    """Reads every file at a location; raises BundleRefused naming the one that is damaged, missing or in excess.

    With ``trust``, TrustRefused is raised before anything of the manifest is parsed where nothing vouches for it.
    """
    where = locate(location)
    with opened(where) as source:
        digest = manifest_digest(source.manifest)
        trusted = trust.reason(digest, source.signature, where.text) if trust is not None else ""
        manifest = _manifest(source.manifest, where.text)
        for name, content in source.files(manifest):
            copy(content, None, manifest.files[name], f"{where.text}: {name}")
            if advance is not None:
                advance(manifest.files[name].size)
        return Seen(manifest, digest, source.signature, trusted)


def _manifest(data: bytes, where: str) -> Manifest:
    try:
        return Manifest.from_bytes(data)
    except BundleRefused as error:
        raise BundleRefused(f"{where}: {error}") from error
