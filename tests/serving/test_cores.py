from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.cores import usable_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("9900000 100000\n", 8),
        ("200000\n", 8),
        ("no numbers\n", 8),
        ("200000 0x\n", 8),
    ],
)
def test_a_containers_limit_counts(text: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    group = tmp_path / "cpu.max"
    group.write_text(text)
    assert usable_cores(group) == cores


def test_without_control_groups_all_pinned_cores_count(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "cpu.max") == len(os.sched_getaffinity(0))
