"""The workspace: one sweep at a time, and stores that are whole whatever was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmup.stores.inductor import InductorStore
from warmup.sweep.workspace import SweepRunning, Workspace, WorkspaceError, entries, reserved

STORES = (InductorStore(),)


def put(root: Path, name: str, data: bytes = b"data") -> Path:
    path = root / "inductor" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    root = tmp_path / ".bundle.sweep"
    root.mkdir()
    return Workspace(root)


def test_a_second_sweep_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    with reserved(out):
        with pytest.raises(SweepRunning, match=r"another sweep is at work .*process \d+.*--out"), reserved(out):
            pass
        with reserved(tmp_path / "other"):
            pass
    with reserved(out) as work:
        assert work.root.parent == tmp_path


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="file/.bundle.sweep"), reserved(tmp_path / "file" / "bundle"):
        pass


def test_a_mount_point_is_refused_before_the_work_and_not_after() -> None:
    with pytest.raises(WorkspaceError, match="/proc is a mount point.*name a directory in it"), reserved(Path("/proc")):
        pass


def test_unfinished_entries_go_and_the_stores_move(work: Workspace) -> None:
    root = work.start_over()
    put(root, "ab/whole.so")
    vouched = entries(STORES, root)
    half = put(root, "ab/half.so", b"\x7fEL")
    with half.open("ab") as compiler:  # it lives on, with its file open
        removed = work.take_back(STORES, vouched)
        compiler.write(b"F and more")
    assert [finding.where for finding in removed] == ["ab/half.so"]
    assert not root.exists()
    assert work.stores is not None
    assert work.stores != root
    assert entries(STORES, work.stores) == vouched


def test_stores_on_their_way_to_the_bundle_come_back(work: Workspace) -> None:
    root = work.start_over()
    put(root, "ab/whole.so")
    vouched = entries(STORES, root)
    (work.hand_over() / "manifest.json").write_text("{}")
    assert work.stores is None
    assert work.take_back(STORES, vouched) == []
    assert work.stores is not None
    assert entries(STORES, work.stores) == vouched
    assert not work.bundle.exists()


def test_stores_that_are_gone_are_missed(work: Workspace) -> None:
    with pytest.raises(WorkspaceError, match="the stores of the sweep are gone"):
        work.take_back(STORES, {})


def test_a_proof_runs_on_a_copy(work: Workspace) -> None:
    root = work.start_over()
    put(root, "ab/whole.so")
    put(root, "locks/a.lock")
    copy = work.copy(STORES)
    assert entries(STORES, copy) == entries(STORES, root)
    assert not (copy / "inductor" / "locks").exists()
    put(copy, "ab/new.so")
    assert "ab/new.so" not in entries(STORES, root)["inductor"]
    assert "ab/new.so" not in entries(STORES, work.copy(STORES))["inductor"]


def test_starting_over_and_clearing_leave_nothing(work: Workspace) -> None:
    put(work.start_over(), "ab/whole.so")
    root = work.start_over()
    assert entries(STORES, root) == {"inductor": {}}
    work.journal.write_text("")
    work.clear()
    assert list(work.root.iterdir()) == []
