from __future__ import annotations

from pathlib import Path

import pytest

from serving.barrier import COUNT, DIRECTORY, INDEX, Barrier


def test_nobody_is_ready_before_all_are(tmp_path: Path) -> None:
    first, second = Barrier(tmp_path, 0, 2), Barrier(tmp_path, 1, 2)
    assert not first.arrive()
    assert not first.arrive()
    assert second.arrive()
    assert first.arrive()


def test_one_that_is_replaced_finds_the_barrier_open(tmp_path: Path) -> None:
    assert not Barrier(tmp_path, 0, 2).arrive()
    assert Barrier(tmp_path, 1, 2).arrive()
    assert Barrier(tmp_path, 1, 2).arrive()


def test_a_process_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    assert Barrier.of_this_process().arrive()


def test_the_supervisor_says_who_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ((DIRECTORY, str(tmp_path)), (INDEX, "1"), (COUNT, "2")):
        monkeypatch.setenv(name, value)
    assert not Barrier.of_this_process().arrive()
    assert Barrier(tmp_path, 0, 2).arrive()
