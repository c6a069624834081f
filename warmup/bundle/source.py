"""Reading a bundle from wherever it is: one interface over the three layouts that ``location`` describes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from fsspec.spec import AbstractFileSystem

from warmup.bundle.archive import Reader
from warmup.bundle.files import MANIFEST, SIGNATURE, BundleError, BundleRefused, FileDigest, regular, walk
from warmup.bundle.location import Location, reaching
from warmup.bundle.manifest import MAX_MANIFEST, Manifest, check_names, manifest_digest
from warmup.bundle.signature import MAX_SIGNATURE

BLOBS = "blobs/sha256"
SIGNATURES = "signatures"
_SMALL = 4 << 20  # bytes; files up to this size are fetched many at a time
_BATCH = 128  # files, of 32 MiB together at most
_BATCH_BYTES = 32 << 20
_BLOCK = 16 << 20  # bytes asked for at a time of a large file


class Source(Protocol):
    """A bundle somewhere: its manifest's bytes, its signature file's bytes if it has one, and its files, once."""

    manifest: bytes
    signature: bytes | None

    def files(self, manifest: Manifest) -> Iterator[tuple[str, BinaryIO]]:
        """Every file of the manifest, once, in any order; each is to be read before the next is asked for.

        Raises BundleRefused, naming the file, where one is missing or is no regular file.
        """
        ...


@contextlib.contextmanager
def opened(location: Location) -> Iterator[Source]:
    """The bundle at a location; raises BundleError where there is none or it cannot be reached."""
    with reaching(location.text):
        if location.archive:
            with _archive_stream(location) as stream:
                yield Reader(stream, location.text)
        elif location.local is not None:
            yield Directory(location.local)
        else:
            yield Objects(location)


@contextlib.contextmanager
def _archive_stream(location: Location) -> Iterator[BinaryIO]:
    if location.local is not None:
        if location.local.is_dir():
            raise BundleError(f"{location.text} is a directory; a name that ends in .tar means an archive")
        with regular(location.local.resolve()) as file:
            yield file
    else:
        with _stream(location.filesystem, location.path) as file:
            yield file


class Directory:
    """A bundle in a local directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            self.manifest = self._read(MANIFEST, MAX_MANIFEST)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BundleError(f"{root}: no bundle here: {MANIFEST} is missing") from error
        self.signature: bytes | None = None
        with contextlib.suppress(FileNotFoundError):  # most bundles are not signed
            self.signature = self._read(SIGNATURE, MAX_SIGNATURE)

    def files(self, manifest: Manifest) -> Iterator[tuple[str, BinaryIO]]:
        check_names(manifest, set(walk(self._root)), str(self._root))
        for name in manifest.files:
            with regular(self._root / name) as file:
                yield name, file

    def _read(self, name: str, limit: int) -> bytes:
        with regular(self._root / name) as file:
            return file.read(limit + 1)


class Objects:
    """A bundle in an object store, by digest, or file by file where a directory was copied there."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._filesystem = location.filesystem
        try:
            self.manifest = self._read(location.at(MANIFEST), MAX_MANIFEST)
        except FileNotFoundError as error:
            raise BundleError(f"{location.text}: no bundle here: {MANIFEST} is missing") from error
        hexdigits = manifest_digest(self.manifest).removeprefix("sha256:")
        self.signature: bytes | None = None
        for path in (location.at(SIGNATURES, hexdigits), location.at(SIGNATURE)):
            with contextlib.suppress(FileNotFoundError):  # most bundles are not signed
                self.signature = self._read(path, MAX_SIGNATURE)
                break

    def files(self, manifest: Manifest) -> Iterator[tuple[str, BinaryIO]]:
        by_digest = bool(manifest.files) and self._by_digest(next(iter(manifest.files.values())))
        batch: list[tuple[str, str, int]] = []
        for name, wanted in manifest.files.items():
            path = self._location.at(BLOBS, wanted.sha256) if by_digest else self._location.at(name)
            if wanted.size > _SMALL:
                with self._named(name):
                    file = _stream(self._filesystem, path)
                with file:
                    yield name, file
                continue
            batch.append((name, path, wanted.size))
            if len(batch) == _BATCH or sum(size for _, _, size in batch) > _BATCH_BYTES:
                yield from self._fetch(batch)
                batch = []
        yield from self._fetch(batch)

    def _by_digest(self, first: FileDigest) -> bool:
        return self._filesystem.exists(self._location.at(BLOBS, first.sha256))

    def _fetch(self, batch: list[tuple[str, str, int]]) -> Iterator[tuple[str, BinaryIO]]:
        """Small files, at most one byte more of each than expected."""
        full = [(name, path, size) for name, path, size in batch if size]
        contents: list[bytes | Exception] = self._filesystem.cat_ranges(
            [path for _, path, _ in full], [0] * len(full), [size + 1 for _, _, size in full], on_error="return"
        )
        for (name, _, _), content in zip(full, contents, strict=True):
            with self._named(name):
                if isinstance(content, Exception):
                    raise content
            yield name, io.BytesIO(content)
        for name, path, size in batch:
            if not size:  # no range of an empty object can be asked for
                with self._named(name):
                    found = int(self._filesystem.info(path)["size"] or 0)
                yield name, io.BytesIO(bytes(min(found, 1)))

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise BundleRefused(f"{self._location.text}: {name} is missing") from error

    def _read(self, path: str, limit: int) -> bytes:
        with _stream(self._filesystem, path) as file:
            data = bytearray()
            while len(data) <= limit and (block := file.read(limit + 1 - len(data))):
                data += block
            return bytes(data)


def _stream(filesystem: AbstractFileSystem, path: str) -> BinaryIO:
    """An object open for reading from its beginning to its end."""
    plain = "http" in filesystem.protocol  # many web servers know nothing of ranges
    return cast(BinaryIO, filesystem.open(path, "rb", block_size=0 if plain else _BLOCK))
