from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def nodes() -> Path:
    """The folder of node fixtures: small copies of sysfs and of what ROCm installs, one folder each."""
    return Path(__file__).parent / "nodes"


@pytest.fixture
def healthy(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has nothing to be ashamed of."""
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home), "MIOPEN_FIND_MODE": "FAST"}
