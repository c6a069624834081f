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
# A URL's name and password, and its query, which may hold a signature or a token: nobody is to read them in a log.
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*://)(?:[^/?\s'\"<>]*@)?([^?#\s'\"<>]*)(?:[?#][^\s'\"<>]*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Location:
    """A place for one bundle; ``text`` is how to name it to people, without a password or a query."""

    text: str
    filesystem: AbstractFileSystem
    path: str

    @property
    def local(self) -> Path | None:
        """The path on this machine's disk, or None where the location is elsewhere."""
        return Path(self.path) if isinstance(self.filesystem, LocalFileSystem) else None

    @property
    def archive(self) -> bool:
        return self._parts[0].endswith(ARCHIVE)

    def at(self, *parts: str) -> str:
        """A path below the location; a URL's query stays at its end."""
        path, query = self._parts
        return "/".join((path.rstrip("/"), *parts)) + query

    @property
    def _parts(self) -> tuple[str, str]:
        """The path, and the query with its question mark; a file's name on a disk may hold any character."""
        if self.local is not None:
            return self.path, ""
        path, mark, query = self.path.partition("?")
        return path, mark + query


def scrubbed(text: str) -> str:
    """A text, such as an error's message, in which no URL has a name, a password, a query or a fragment."""
    return _URL.sub(r"\1\2", text)


def locate(text: str) -> Location:
    """Understands a path or URL; raises BundleError where nothing here can reach it."""
    shown = scrubbed(text)
    if not text or "::" in text:
        raise BundleError(f"{shown!r} is not a location; expected a path or a URL as in s3://bucket/bundles/v1")
    if shown.lower().endswith(_COMPRESSED):
        raise BundleError(f"{shown}: archives are plain {ARCHIVE} files (compile caches gain little from compression)")
    try:
        filesystem, path = url_to_fs(text)
    except ImportError as error:
        raise BundleError(scrubbed(f"{shown}: {error}. For s3:// install preheat[s3]")) from error
    except ValueError as error:
        raise BundleError(scrubbed(f"{shown}: {error}")) from error
    if not path.strip("/"):
        raise BundleError(f"{shown}: names no place for a bundle")
    filesystem.invalidate_cache()  # an instance may be as old as the process, and remember what was there then
    return Location(shown, filesystem, path)


@contextlib.contextmanager
def reaching(where: str) -> Iterator[None]:
    """Turns whatever a file system raises into a BundleError that names the place, without what is secret in a URL."""
    try:
        yield
    except BundleError:
        raise
    except OSError as error:
        hint = "; free some space and try again" if error.errno in FULL else ""
        raise BundleError(scrubbed(f"{error.filename or where}: {error.strerror or error}{hint}")) from error
    except Exception as error:  # each fsspec backend has exception classes of its own
        raise BundleError(scrubbed(f"{where}: {type(error).__name__}: {error}")) from error
