"""Fetches a bundle, verified to the byte, into a private directory of this user. Needs no GPU and no framework.

    bundle = pull("s3://bucket/bundles/v1", Path("/cache/v1"), Trust(digest="sha256:..."))
    bundle = pull_into_cache(location, cache, trust)        at cache/sha256-<hex>, shared by all pulls of the bundle
    copy_stores(bundle, into)                               a verified copy of the stores for one process to write to

Nothing is copied before the trust in the bundle is settled, every file is checked while it is copied, and the bundle
appears at its place at once, when the last file has been checked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from warmup.bundle.files import MANIFEST, SIGNATURE, BundleError, BundleRefused, copy, created, regular, sync
from warmup.bundle.location import locate, reaching
from warmup.bundle.manifest import Bundle, Manifest, manifest_digest, read_bundle, verify
from warmup.bundle.place import reserved
from warmup.bundle.prune import hold
from warmup.bundle.source import Source, opened
from warmup.bundle.trust import Trust

_TRIES = 5  # to hold a copy that is pruned at this very moment
Advance = Callable[[int], object]  # called with the bytes done since the last call


def pull(location: str, into: Path, trust: Trust, advance: Advance | None = None) -> Bundle:
    """Brings the bundle at ``location`` (a path or URL) to the directory ``into``, and says in ``trusted`` why it may.

    ``into`` must not exist, be empty, or hold this very bundle: that is then verified, and fetched again where it is
    damaged. Two pulls into one place wait for each other.

    Raises TrustRefused where nothing vouches for the bundle; BundleRefused, naming the file, where anything differs
    from the manifest; BundleError where the location cannot be reached or the disk is full. Nothing is left at
    ``into`` then.
    """
    where = locate(location)
    with opened(where) as source:
        manifest, digest, reason = _accepted(source, trust, where.text)
        return _place(source, manifest, digest, reason, into, advance)


def pull_into_cache(location: str, cache: Path, trust: Trust, advance: Advance | None = None) -> Bundle:
    """Like ``pull``, into ``cache/sha256-<hex>``. A pinned bundle that is in the cache already is not fetched. What is
    returned is not pruned while this process lives (``warmup.bundle.prune``)."""
    for _ in range(_TRIES):
        bundle = _from_cache(location, cache, trust, advance)
        if hold(bundle.root):
            return bundle
    raise BundleError(f"{bundle.root}: removed {_TRIES} times as soon as it was there")


def _from_cache(location: str, cache: Path, trust: Trust, advance: Advance | None) -> Bundle:
    if trust.digest and (cached := _intact(_cached(cache, trust.digest), trust.digest)):
        return Bundle(cached.root, cached.manifest, cached.digest, trust.reason(cached.digest, None, str(cached.root)))
    where = locate(location)
    with opened(where) as source:
        manifest, digest, reason = _accepted(source, trust, where.text)
        return _place(source, manifest, digest, reason, _cached(cache, digest), advance)


def copy_stores(bundle: Bundle, into: Path) -> Path:
    """Copies the stores to ``into/<store>/...`` for one process to fill further; ``into`` must be empty or missing.

    Every file is checked again while it is copied; raises BundleRefused naming the one that has changed since.
    """
    with reaching(str(into)):
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(into.iterdir()):
            raise BundleError(f"{into} is not empty")
        for store in bundle.manifest.stores:
            (into / store).mkdir(mode=0o700)
        for name, expected in bundle.manifest.files.items():
            target = into / name.split("/", 1)[1]
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with regular(bundle.root / name) as source, target.open("xb") as file:
                copy(source, file, expected, f"{bundle.root}: {name}")
    return into


def _accepted(source: Source, trust: Trust, where: str) -> tuple[Manifest, str, str]:
    """The manifest, the bundle's digest and why it is trusted: settled before a stranger's text is parsed."""
    digest = manifest_digest(source.manifest)
    reason = trust.reason(digest, source.signature, where)
    try:
        return Manifest.from_bytes(source.manifest), digest, reason
    except BundleRefused as error:
        raise BundleRefused(f"{where}: {error}") from error


def _place(source: Source, manifest: Manifest, digest: str, reason: str, into: Path, advance: Advance | None) -> Bundle:
    into = into.absolute()
    with reserved(into) as place:
        if into.is_symlink() or (into.exists() and not into.is_dir()):
            raise BundleError(f"{into} is there already and is no directory")
        if into.exists() and any(into.iterdir()):
            if _intact(into, digest):
                return Bundle(into, manifest, digest, reason)
            _same_or_refuse(into, digest)
        written = place.staging / "bundle"
        written.mkdir(mode=0o700)
        for name, content in source.files(manifest):
            with created(written / name) as file:
                copy(content, file, manifest.files[name], name)
            if advance is not None:
                advance(manifest.files[name].size)
        if source.signature is not None:
            with created(written / SIGNATURE) as file:
                file.write(source.signature)
        with created(written / MANIFEST) as file:
            file.write(source.manifest)
        # The manifest alone is written through: with it, what else a power failure takes is found and fetched again.
        sync(written / MANIFEST)
        place.commit(written, durable=False)
    return Bundle(into, manifest, digest, reason)


def _cached(cache: Path, digest: str) -> Path:
    return cache / digest.replace(":", "-")


def _intact(path: Path, digest: str) -> Bundle | None:
    """The bundle at ``path`` if it is the one with this digest and undamaged."""
    try:
        bundle = read_bundle(path)
        if bundle.digest != digest:
            return None
        verify(bundle)
    except BundleError:
        return None  # absent or damaged: either way it has to be fetched
    return bundle


def _same_or_refuse(into: Path, digest: str) -> None:
    try:
        found = read_bundle(into).digest
    except BundleError as error:
        raise BundleError(f"{into} is not empty and holds no bundle; name another directory") from error
    if found != digest:
        raise BundleError(f"{into} holds {found}, not {digest}; name another directory")
