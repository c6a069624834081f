"""Stores of files that never change: what counts, what is damaged, what is removed, and how two are joined."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmup.stores.inductor import InductorStore
from warmup.stores.onnxruntime import OnnxRuntimeStore
from warmup.stores.store import MergeReport, added_entries

KERNEL = "ab/cab.main.cpp"


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


@pytest.fixture
def store() -> InductorStore:
    return InductorStore()


def test_locks_and_unfinished_files_are_no_entries(store: InductorStore, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            KERNEL: b"int main;",
            "fxgraph/ab/fab/one": b"\x80\x04.",
            "locks/cab.lock": b"",
            "ab/.123.456.tmp": b"half",
            "ab/cab.main.o": b"object",
            "ab/__pycache__/cab.cpython-311.pyc": b"code",
        },
    )
    assert sorted(store.entries(tmp_path)) == [KERNEL, "fxgraph/ab/fab/one"]


def test_an_entry_changes_its_value_with_its_content(store: InductorStore, tmp_path: Path) -> None:
    write(tmp_path, {KERNEL: b"one", "ab/other.py": b"same"})
    before = store.entries(tmp_path)
    (tmp_path / KERNEL).unlink()
    write(tmp_path, {KERNEL: b"two"})
    assert added_entries(before, store.entries(tmp_path)) == [KERNEL]


def test_a_copy_has_the_same_entries(store: InductorStore, tmp_path: Path) -> None:
    for name in ("here", "there"):
        write(tmp_path / name, {KERNEL: b"one", "fxgraph/ab/fab/one": b"\x80\x04."})
    assert store.entries(tmp_path / "here") == store.entries(tmp_path / "there") != {}


def test_a_missing_store_is_empty(store: InductorStore, tmp_path: Path) -> None:
    assert store.entries(tmp_path / "none") == {}
    assert store.check(tmp_path / "none") == []


def test_reclaim_removes_what_nobody_vouches_for(store: InductorStore, tmp_path: Path) -> None:
    write(tmp_path, {KERNEL: b"whole", "cd/ccd.so": b"whole too"})
    vouched = store.entries(tmp_path)
    write(tmp_path, {"cd/ccd.so": b"whol", "ef/cef.so": b"", "locks/a.lock": b"", "ef/.1.2.tmp": b"x"})
    removed = store.reclaim(tmp_path, vouched)
    assert [finding.where for finding in removed] == ["cd/ccd.so", "ef/cef.so"]
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [KERNEL]


def test_tidy_leaves_entries_and_no_empty_folders(store: InductorStore, tmp_path: Path) -> None:
    write(tmp_path, {KERNEL: b"x", "locks/a.lock": b"", "gh/.1.2.tmp": b"x"})
    store.tidy(tmp_path)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["ab", KERNEL]


def test_merge_adds_what_is_missing_and_keeps_the_first_of_two(store: InductorStore, tmp_path: Path) -> None:
    write(tmp_path / "into", {KERNEL: b"one", "ab/same.py": b"same"})
    write(tmp_path / "from", {KERNEL: b"other", "ab/same.py": b"same", "cd/new.so": b"new"})
    (tmp_path / "from" / "cd" / "new.so").chmod(0o755)
    report = store.merge(tmp_path / "into", [tmp_path / "from"])
    assert report == MergeReport(1, 2, (f"{KERNEL}: two builds of the same entry; kept the first",))
    assert (tmp_path / "into" / KERNEL).read_bytes() == b"one"
    assert (tmp_path / "into" / "cd" / "new.so").stat().st_mode & 0o777 == 0o755


def test_merging_twice_adds_nothing(store: InductorStore, tmp_path: Path) -> None:
    write(tmp_path / "from", {KERNEL: b"one"})
    (tmp_path / "into").mkdir()
    assert store.merge(tmp_path / "into", [tmp_path / "from"]).added == 1
    assert store.merge(tmp_path / "into", [tmp_path / "from"]).added == 0


def test_optimised_graphs_being_written_are_no_entries(tmp_path: Path) -> None:
    write(tmp_path, {"model-0123.onnx": b"\x08\x09", ".model-0123.onnx.77": b"\x08"})
    assert list(OnnxRuntimeStore().entries(tmp_path)) == ["model-0123.onnx"]


def test_a_copy_of_triton_s_groups_names_its_own_files(store: InductorStore, tmp_path: Path) -> None:
    group = "triton/0/ABC/__grp__kernel.json"
    for name in ("here", "there"):
        named = {"child_paths": {"kernel.cubin": str(tmp_path / "here/triton/0/ABC/kernel.cubin")}}
        write(tmp_path / name, {group: json.dumps(named).encode(), "triton/0/ABC/kernel.cubin": b"code"})
    before = store.entries(tmp_path / "there")
    store.relocate(tmp_path / "there")
    moved = json.loads((tmp_path / "there" / group).read_bytes())["child_paths"]
    assert moved == {"kernel.cubin": str(tmp_path / "there/triton/0/ABC/kernel.cubin")}
    assert store.entries(tmp_path / "there") == before == store.entries(tmp_path / "here")
    assert store.check(tmp_path / "there") == []
    (tmp_path / "there" / group).write_bytes(b'{"child_paths": {')
    assert store.entries(tmp_path / "there") != before
    assert [finding.where for finding in store.check(tmp_path / "there")] == [group]
