from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from serving.scratch import reap, scratch

HOLD = "from serving.scratch import scratch\nwith scratch() as place:\n    print(place, flush=True)\n    input()\n"


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_scratch_directory_is_private_and_goes_with_its_owner(tmp_path: Path) -> None:
    with scratch() as place:
        assert place.stat().st_mode & 0o777 == 0o700
        (place / "file").write_text("x")
        reap()
        assert (place / "file").exists()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as held:
        assert held.stdout is not None
        left = Path(held.stdout.readline().strip())
        with scratch() as place:
            assert left.is_dir()  # its process lives
            assert place != left
        os.kill(held.pid, signal.SIGKILL)
        held.wait()
        reap()
        assert not left.exists()
