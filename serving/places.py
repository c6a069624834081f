"""Where things are by default, after the XDG Base Directory Specification."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


class UnsafeDirectory(Exception):
    """A directory for secrets that somebody else owns or can read."""


def default_models() -> Path:
    """The model store: ``PREHEAT_MODEL_STORE``, or ``model_store`` in the working directory or beside the code."""
    named = os.environ.get("PREHEAT_MODEL_STORE")
    if named:
        return Path(named)
    here = Path("model_store")
    return here if here.is_dir() else Path(__file__).resolve().parent.parent / "model_store"


def default_bundle() -> Path:
    """Where ``preheat warm`` leaves its bundle and ``preheat serve`` looks for one."""
    return _cache() / "bundle"


def bundle_cache() -> Path:
    """Verified copies of bundles that were pulled."""
    return _cache() / "bundles"


def runtime_directory() -> Path:
    """A directory of this user for files that live as long as a process."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    place = Path(base) / "preheat" if base else Path(tempfile.gettempdir()) / f"preheat-{os.getuid()}"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UnsafeDirectory(f"{place}: expected a directory of this user alone (mode 0700)")
    return place


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "preheat"
