"""Turns a directory of filled stores into a bundle. This is what the sweep calls when everything is proven.

    bundle = build(root, identity=..., models=..., stores=...)

``root`` holds ``stores/<name of the store>/...`` and nothing else (an older manifest is replaced, its signature
removed). The stores are not moved or copied: the directory becomes the bundle when its manifest is renamed into place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from warmup.bundle.files import MANIFEST, SIGNATURE, STORES, BundleError, FileDigest, digest, replace, walk
from warmup.bundle.ledger import remember
from warmup.bundle.manifest import Bundle, BundledModel, Manifest, StoreSummary, manifest_digest
from warmup.bundle.trust import MADE_HERE
from warmup.stores.store import Store


def build(
    root: Path,
    *,
    identity: Mapping[str, str],
    models: Mapping[str, BundledModel],
    stores: Iterable[Store],
    shard: str = "",
) -> Bundle:
    """Digests every file, writes ``root/manifest.json`` and remembers the bundle as made by this user.

    ``shard`` is "i/n" where this is a part of a sweep. Stores without a file are listed with 0 entries.

    Raises BundleRefused on links and special files, BundleError where ``root`` holds something that is no part of a
    bundle, where a store changes meanwhile, or where the disk is full (the old manifest then stays).
    """
    named = {store.name: store for store in stores}
    for stale in root.glob(f".{MANIFEST}.*.tmp"):
        stale.unlink(missing_ok=True)
    for store in named.values():
        if (root / STORES / store.name).is_dir():
            store.tidy(root / STORES / store.name)
    files = {name: _digest(root, name) for name in _stores_only(walk(root))}
    for name in files:
        parts = name.split("/")
        if len(parts) < 3 or parts[0] != STORES or parts[1] not in named:
            allowed = ", ".join(f"{STORES}/{store}/" for store in named)
            raise BundleError(f"{root}: {name} is no part of a bundle; allowed: {MANIFEST} and files under {allowed}")
    manifest = Manifest(
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        shard=shard,
        identity=dict(identity),
        models=dict(models),
        stores={name: _summary(store, root / STORES / name, files) for name, store in named.items()},
        files=files,
    )
    if {name: file.size for name, file in files.items()} != _stores_only(walk(root)):
        raise BundleError(f"{root}: a file changed while the bundle was made; is something still writing there?")
    data = manifest.to_bytes()
    Manifest.from_bytes(data)
    try:
        (root / SIGNATURE).unlink(missing_ok=True)
        replace(root / MANIFEST, data)
    except OSError as error:
        raise BundleError(f"{root / MANIFEST}: {error.strerror}") from error
    name = manifest_digest(data)
    return Bundle(root, manifest, name, MADE_HERE if remember(name) else "")


def _digest(root: Path, name: str) -> FileDigest:
    try:
        return digest(root / name)
    except OSError as error:
        raise BundleError(f"{root / name}: {error.strerror}") from error


def _summary(store: Store, root: Path, files: Mapping[str, FileDigest]) -> StoreSummary:
    prefix = f"{STORES}/{store.name}/"
    size = sum(file.size for name, file in files.items() if name.startswith(prefix))
    return StoreSummary(len(store.entries(root)) if root.is_dir() else 0, size)


def _stores_only(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if name not in (MANIFEST, SIGNATURE)}
