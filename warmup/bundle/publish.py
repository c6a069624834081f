"""Ships a bundle to a location: a directory, a .tar file, or an object store (see ``location``).

    publish(open_bundle(Path("out")), "s3://bucket/bundles/v1")

A reader finds the whole bundle or none. A published bundle never changes: the same bundle may be published again,
another one needs another place.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fsspec.spec import AbstractBufferedFile

from warmup.bundle.archive import Writer
from warmup.bundle.files import MANIFEST, SIGNATURE, BundleError, Checked, copy, created, regular, replace, walk
from warmup.bundle.location import Location, locate, reaching
from warmup.bundle.manifest import MAX_MANIFEST, Bundle, check_names, manifest_digest
from warmup.bundle.place import reserved
from warmup.bundle.pull import Advance
from warmup.bundle.signature import MAX_SIGNATURE, key_id, sign
from warmup.bundle.source import BLOBS, SIGNATURES, opened

_SMALL = 4 << 20  # bytes; files up to this size are sent many at a time
_BATCH = 128  # files, of 32 MiB together at most
_BATCH_BYTES = 32 << 20
_BLOCK = 16 << 20  # bytes sent at a time of a large file
_FOR_ALL = 0o666  # less the umask: what is published is there to be read by other users


class AlreadyPublished(BundleError):
    """Another bundle is at the location."""


def publish(bundle: Bundle, location: str, advance: Advance | None = None) -> str:
    """Publishes a local bundle, and returns its digest. Every file is checked while it is copied.

    Raises AlreadyPublished where another bundle is there; BundleRefused, naming the file, where a file is no longer
    what the manifest says; BundleError where the location cannot be written or is full. Nothing is published then.
    """
    where = locate(location)
    data, signature = _heads(bundle)
    with reaching(where.text):
        if where.local is None:
            if not _published(where, bundle.digest):
                _send(bundle, data, signature, where, advance or _quiet)
        else:
            _write(bundle, data, signature, where, where.local.absolute(), advance or _quiet)
    return bundle.digest


def add_signature(location: str, digest: str, key: Ed25519PrivateKey) -> str:
    """Signs the bundle with this digest where it is, a directory or an object store, and returns the key's id.

    Signatures by other keys stay. Raises BundleError for an archive, which never changes, and where another bundle is
    there.
    """
    where = locate(location)
    if where.archive:
        raise BundleError(f"{where.text}: an archive never changes; sign the directory, then publish it")
    with opened(where) as source:
        found, existing = manifest_digest(source.manifest), source.signature
    if found != digest:
        raise BundleError(f"{where.text}: {digest} was to be signed, {found} found")
    data = sign(digest, key, existing)
    with reaching(where.text):
        if where.local is not None:
            replace(where.local / SIGNATURE, data, 0o644)
        else:
            where.filesystem.pipe_file(where.at(SIGNATURES, digest.removeprefix("sha256:")), data)
    return key_id(key.public_key())


def _heads(bundle: Bundle) -> tuple[bytes, bytes | None]:
    """The bytes of the manifest and of the signature file."""
    with reaching(str(bundle.root)):
        with regular(bundle.root / MANIFEST) as file:
            data = file.read(MAX_MANIFEST)
        if manifest_digest(data) != bundle.digest:
            raise BundleError(f"{bundle.root}: {MANIFEST} has changed since it was read")
        try:
            with regular(bundle.root / SIGNATURE) as file:
                return data, file.read(MAX_SIGNATURE)
        except FileNotFoundError:
            return data, None


def _published(where: Location, digest: str) -> bool:
    """Whether this bundle is at the location; raises AlreadyPublished where another one is."""
    if not where.filesystem.exists(where.path if where.archive else where.at(MANIFEST)):
        return False
    with opened(where) as source:
        found = manifest_digest(source.manifest)
    if found != digest:
        raise AlreadyPublished(
            f"{where.text} holds {found} already, and a published bundle never changes; publish {digest} elsewhere"
        )
    return True


def _write(
    bundle: Bundle, data: bytes, signature: bytes | None, where: Location, target: Path, advance: Advance
) -> None:
    """To a local disk: beside the target, then renamed."""
    with reserved(target) as place:
        if _published(where, bundle.digest):
            return
        if target.exists() and (where.archive or not target.is_dir() or any(target.iterdir())):
            raise BundleError(f"{target} is there already and holds no bundle; publish elsewhere")
        written = place.staging / "bundle"
        if where.archive:
            with created(written, _FOR_ALL) as file:
                _pack(bundle, data, signature, file, advance)
        else:
            written.mkdir()
            for name, content in _files(bundle, advance):
                with created(written / name, _FOR_ALL) as file:
                    copy(content, file, bundle.manifest.files[name], f"{bundle.root}: {name}")
            for name, head in ((SIGNATURE, signature), (MANIFEST, data)):
                if head is not None:
                    with created(written / name, _FOR_ALL) as file:
                        file.write(head)
        place.commit(written)


def _send(bundle: Bundle, data: bytes, signature: bytes | None, where: Location, advance: Advance) -> None:
    """Elsewhere: an archive as one object, or contents by digest with the manifest last."""
    if where.archive:
        with _committed(where, where.path) as file:
            _pack(bundle, data, signature, file, advance)
        return
    _send_blobs(bundle, where, advance)
    files = where.filesystem
    if signature is not None:
        files.pipe_file(where.at(SIGNATURES, bundle.digest.removeprefix("sha256:")), signature)
    try:
        files.pipe_file(where.at(MANIFEST), data, mode="create")
    except Exception:  # each backend says in its own way that somebody else was first
        files.invalidate_cache()
        if not _published(where, bundle.digest):
            raise


def _send_blobs(bundle: Bundle, where: Location, advance: Advance) -> None:
    """Sends the contents that are not there yet, small ones many at a time."""
    there = _sizes(where, where.at(BLOBS))
    batch: dict[str, bytes] = {}
    for name, content in _files(bundle, advance):
        expected = bundle.manifest.files[name]
        if there.get(expected.sha256) == expected.size:
            continue
        there[expected.sha256] = expected.size
        path, shown = where.at(BLOBS, expected.sha256), f"{bundle.root}: {name}"
        if expected.size > _SMALL:
            with _committed(where, path) as file:
                copy(content, file, expected, shown)
            continue
        whole = io.BytesIO()
        copy(content, whole, expected, shown)
        batch[path] = whole.getvalue()
        if len(batch) == _BATCH or sum(map(len, batch.values())) > _BATCH_BYTES:
            where.filesystem.pipe(batch)
            batch = {}
    if batch:
        where.filesystem.pipe(batch)


def _sizes(where: Location, path: str) -> dict[str, int]:
    """The sizes in bytes of the objects below a path, by their last name."""
    try:
        found = cast("dict[str, dict[str, int]]", where.filesystem.find(path, detail=True))
    except FileNotFoundError:
        return {}
    return {name.rsplit("/", 1)[-1]: int(facts["size"] or 0) for name, facts in found.items()}


@contextlib.contextmanager
def _committed(where: Location, path: str) -> Iterator[BinaryIO]:
    """An object being written that appears under its name when it is whole; an abandoned one goes away."""
    files = where.filesystem
    file = cast(AbstractBufferedFile, files.open(path, "wb", block_size=_BLOCK, autocommit=False))
    at_once = files.exists(path)  # some backends do not know of commits: what is half written is theirs to show
    try:
        yield cast(BinaryIO, file)
        file.close()
    except BaseException:
        file.discard()
        if isinstance(file, AbstractBufferedFile):
            file.closed = True  # else it would try to send its rest when it is collected
        if at_once:
            files.rm_file(path)
        raise
    file.commit()


def _files(bundle: Bundle, advance: Advance) -> Iterator[tuple[str, BinaryIO]]:
    """Every file of the bundle, open; raises BundleRefused where files are missing or in excess."""
    check_names(bundle.manifest, set(walk(bundle.root)), str(bundle.root))
    for name, expected in bundle.manifest.files.items():
        with regular(bundle.root / name) as file:
            yield name, file
        advance(expected.size)


def _pack(bundle: Bundle, data: bytes, signature: bytes | None, stream: BinaryIO, advance: Advance) -> None:
    writer = Writer(stream)
    writer.add(MANIFEST, len(data), io.BytesIO(data))
    if signature is not None:
        writer.add(SIGNATURE, len(signature), io.BytesIO(signature))
    for name, content in _files(bundle, advance):
        expected = bundle.manifest.files[name]
        checked = Checked(content, expected, f"{bundle.root}: {name}")
        writer.add(name, expected.size, cast(BinaryIO, checked))
        checked.finish()
    writer.close()


def _quiet(_bytes: int) -> None:
    """For callers that show no progress."""
