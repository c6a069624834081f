"""A virtual environment for each peer, made once: pinned packages from ``requirements/``, under the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "preheat" / "peers"


class InstallError(Exception):
    """A peer that could not be installed."""


def environment(name: str) -> Path:
    """The ``bin`` folder of the peer's environment, installed if it is not there or its pins have changed."""
    requirements = HERE / "requirements" / f"{name}.txt"
    pins = requirements.read_bytes() + sys.version.encode()
    folder = CACHE / f"{name}-{hashlib.sha256(pins).hexdigest()[:12]}"
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise InstallError(f"{name}: {' '.join(command)}:\n{done.stderr[-2000:]}")
        complete.touch()
    return folder / "bin"


def versions(name: str) -> Mapping[str, str]:
    """The versions of the packages that the peer's requirements name, as installed."""
    listed = subprocess.run(
        [str(environment(name) / "python"), "-m", "pip", "list", "--format=json"],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {line.split("=")[0].split(">")[0] for line in (HERE / "requirements" / f"{name}.txt").read_text().split()}
    return {package["name"]: package["version"] for package in json.loads(listed.stdout) if package["name"] in wanted}
