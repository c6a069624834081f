"""Where bundles are published: a directory or a .tar file, on a local disk or on any file system that fsspec reaches.

A bundle has three layouts:

- a local directory: the files under their own names;
- an archive (a name that ends in ``.tar``, anywhere): the manifest first, its signature second, then the files;
- an object store (``s3://``, ``memory://``, ...): ``manifest.json``, ``signatures/<digest>``, and each file's content
  at ``blobs/sha256/<hex digits>``. Contents are named by digest, so that publishers at the same place never overwrite
  each other's files, and content that is there already is not sent again. A directory published to disk and then
  copied to an object store, or shown by a web server, is read as well.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from warmup.bundle.files import FULL, BundleError

ARCHIVE = ".tar"
_COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
_PASSWORD = re.compile(r"(?<=://)[^/@]*@")


@dataclass(frozen=True)
class Location:
    """A place for one bundle; ``text`` is how to name it to people, without a password."""

    text: str
    filesystem: AbstractFileSystem
    path: str

    @property
    def local(self) -> Path | None:
        """The path on this machine's disk, or None where the location is elsewhere."""
        return Path(self.path) if isinstance(self.filesystem, LocalFileSystem) else None

    @property
    def archive(self) -> bool:
        return self.path.endswith(ARCHIVE)

    def at(self, *parts: str) -> str:
        """A path below the location."""
        return "/".join((self.path.rstrip("/"), *parts))


def locate(text: str) -> Location:
    """Understands a path or URL; raises BundleError where nothing here can reach it."""
    shown = _PASSWORD.sub("", text)
    if not text or "::" in text:
        raise BundleError(f"{shown!r} is not a location; expected a path or a URL as in s3://bucket/bundles/v1")
    if text.lower().endswith(_COMPRESSED):
        raise BundleError(f"{shown}: archives are plain {ARCHIVE} files (compile caches gain little from compression)")
    try:
        filesystem, path = url_to_fs(text)
    except ImportError as error:
        raise BundleError(f"{shown}: {error}. For s3:// install preheat[s3]") from error
    except ValueError as error:
        raise BundleError(f"{shown}: {error}") from error
    if not path.strip("/"):
        raise BundleError(f"{shown}: names no place for a bundle")
    filesystem.invalidate_cache()  # an instance may be as old as the process, and remember what was there then
    return Location(shown, filesystem, path)


@contextlib.contextmanager
def reaching(where: str) -> Iterator[None]:
    """Turns whatever a file system raises into a BundleError that names the place."""
    try:
        yield
    except BundleError:
        raise
    except OSError as error:
        hint = "; free some space and try again" if error.errno in FULL else ""
        raise BundleError(f"{error.filename or where}: {error.strerror or error}{hint}") from error
    except Exception as error:  # each fsspec backend has exception classes of its own
        raise BundleError(f"{where}: {type(error).__name__}: {error}") from error
