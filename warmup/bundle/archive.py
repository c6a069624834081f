"""Bundles as one tar file: the manifest first, its signature second, then the files in the order of their names.

The same bundle always gives the same bytes. Reading is a single pass, so that an archive can come from a socket, and
takes regular files only: links, devices and directories are refused by name, whatever they point to.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, cast

from warmup.bundle.files import MANIFEST, SIGNATURE, BundleRefused
from warmup.bundle.manifest import MAX_MANIFEST, Manifest
from warmup.bundle.signature import MAX_SIGNATURE

_HEADERS = 8192  # bytes that the headers of one member may take: a pax header with a name of 2048 bytes, and padding
_TAIL = 1 << 20  # bytes of padding at the end that an archive may have


class Reader:
    """An archive being read: ``manifest`` and ``signature`` are there at once, then ``files`` once."""

    def __init__(self, stream: BinaryIO, where: str) -> None:
        """Reads the first one or two members; raises BundleRefused where the first is not the manifest."""
        self._where = where
        self._stream = _Bounded(stream, MAX_MANIFEST + MAX_SIGNATURE + 4 * _HEADERS, where)
        try:
            self._tar = tarfile.open(fileobj=cast("io.BufferedIOBase", self._stream), mode="r|")  # noqa: SIM115
            first = self._tar.next()
            if first is None or first.name != MANIFEST:
                found = "nothing" if first is None else repr(first.name)
                raise BundleRefused(
                    f"{where}: an archive of a bundle begins with {MANIFEST}, found {found}; "
                    "archives are made by: preheat bundle publish"
                )
            self.manifest = self._whole(first, MAX_MANIFEST)
            self._pending = self._tar.next()
            self.signature: bytes | None = None
            if self._pending is not None and self._pending.name == SIGNATURE:
                self.signature = self._whole(self._pending, MAX_SIGNATURE)
                self._pending = self._tar.next()
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise BundleRefused(f"{where}: not a readable tar archive: {error}") from error

    def files(self, manifest: Manifest) -> Iterator[tuple[str, BinaryIO]]:
        """Each file of the manifest, once; raises BundleRefused where one is missing, or is not listed there."""
        self._stream.allow(manifest.size + _HEADERS * (len(manifest.files) + 1) + _TAIL)
        left = dict(manifest.files)
        member = self._pending
        while member is not None:
            expected = left.pop(member.name, None)
            if expected is None:
                twice = member.name in manifest.files
                raise BundleRefused(
                    f"{self._where}: {member.name!r} is {'there twice' if twice else 'not in the manifest'}"
                )
            if member.size != expected.size:
                raise BundleRefused(
                    f"{self._where}: {member.name}: {expected.size} bytes expected, {member.size} announced"
                )
            yield member.name, self._content(member)
            try:
                member = self._tar.next()
            except (tarfile.TarError, ValueError, OverflowError) as error:
                raise BundleRefused(
                    f"{self._where}: not a readable tar archive after {member.name}: {error}"
                ) from error
        if left:
            more = f" and {len(left) - 1} more are" if len(left) > 1 else " is"
            raise BundleRefused(f"{self._where}: {next(iter(left))}{more} missing, or the archive is damaged before it")

    def _whole(self, member: tarfile.TarInfo, limit: int) -> bytes:
        if member.size > limit:
            raise BundleRefused(f"{self._where}: {member.name}: {member.size} bytes, at most {limit} are allowed")
        return self._content(member).read()

    def _content(self, member: tarfile.TarInfo) -> BinaryIO:
        content = self._tar.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None
        if content is None or member.sparse is not None:
            raise BundleRefused(
                f"{self._where}: {member.name!r} is a {_kind(member)}; a bundle holds regular files only"
            )
        return cast(BinaryIO, _Member(content, f"{self._where}: {member.name}"))


class _Member:
    """A member's content, with damage reported under the member's name."""

    def __init__(self, content: object, where: str) -> None:
        self._content = cast(BinaryIO, content)
        self._where = where

    def read(self, size: int = -1) -> bytes:
        try:
            return self._content.read(size)
        except tarfile.TarError as error:
            raise BundleRefused(f"{self._where}: the archive ends in the middle of it") from error


class _Bounded:
    """A stream that refuses to hand out more than it is allowed to: headers may announce any size."""

    def __init__(self, stream: BinaryIO, limit: int, where: str) -> None:
        self._stream = stream
        self._left = limit
        self._where = where

    def allow(self, more: int) -> None:
        self._left += more

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise BundleRefused(f"{self._where}: the archive is larger than its manifest says")
        return data


def _kind(member: tarfile.TarInfo) -> str:
    kinds = {
        tarfile.SYMTYPE: "symbolic link",
        tarfile.LNKTYPE: "hard link",
        tarfile.CHRTYPE: "character device",
        tarfile.BLKTYPE: "block device",
        tarfile.DIRTYPE: "directory",
        tarfile.FIFOTYPE: "named pipe",
        tarfile.GNUTYPE_SPARSE: "sparse file",
    }
    return kinds.get(member.type, "sparse file" if member.sparse is not None else "special file")


class Writer:
    """An archive being written; the order of calls is the order of members."""

    def __init__(self, stream: BinaryIO) -> None:
        self._tar = tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, name: str, size: int, content: BinaryIO) -> None:
        """Adds a file of exactly ``size`` bytes; raises OSError where the content has fewer."""
        member = tarfile.TarInfo(name)
        member.size = size
        member.mode = 0o600
        self._tar.addfile(member, content)

    def close(self) -> None:
        """Writes the end of the archive; the stream stays open."""
        self._tar.close()
