from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.miopen import kernelcache
from warmup.miopen.checkup import check
from warmup.miopen.finddb import FindDb, NotADatabase
from warmup.miopen.mending import merge_files, repair_file
from warmup.miopen.merge import MergeRefused
from warmup.miopen.perfdb import PerfDb, write_sqlite
from warmup.miopen.writing import lock_paths

from .conftest import BACKWARD, DEPTH, FORWARD, GEMM, NAIVE, SOUND, USER_NAME, WEIGHTS
from .test_kernelcache import kernel
from .test_perfdb import KEY, RECORDS, TEXT


@pytest.fixture(autouse=True)
def locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MIOpen's locks, away from those of other processes of this machine."""
    folder = tmp_path_factory.mktemp("locks")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_a_repair_writes_a_copy_and_what_it_left_out(database: Callable[..., Path], tmp_path: Path) -> None:
    source = database(f"{SOUND}# note\n{FORWARD}_g2={GEMM};Conv")
    before = source.read_bytes()
    out = tmp_path / "out" / USER_NAME
    out.parent.mkdir()
    report = repair_file(source, out)
    assert source.read_bytes() == before
    assert out.read_text() == f"{SOUND}{FORWARD}_g2={GEMM}\n"
    assert (report.records, report.saved, report.lost) == (5, 1, 2)
    assert report.aside and report.aside == out.with_name(f"{USER_NAME}.set-aside")
    assert "# note\n" in report.aside.read_text() and f"{FORWARD}_g2=Conv\n" in report.aside.read_text()
    assert check(out) == []


def test_a_repair_in_place_keeps_what_an_earlier_one_set_aside(database: Callable[..., Path]) -> None:
    path = database(f"{SOUND}# first\n")
    assert repair_file(path, path).aside
    with path.open("a") as file:
        file.write("# second\n")
    second = repair_file(path, path).aside
    assert second and second.name.endswith(".set-aside.1")
    assert path.read_text() == SOUND


def test_a_sound_file_is_copied_byte_for_byte(database: Callable[..., Path], tmp_path: Path) -> None:
    report = repair_file(database(SOUND), tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == SOUND
    assert (report.lost, report.aside) == (0, None)


def test_a_file_that_is_none_is_not_repaired(database: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(NotADatabase, match="passwd is not a database of MIOpen"):
        repair_file(database("root:x:0\n", "passwd"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_the_old_file(
    database: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = database(f"{SOUND}{FORWARD}_g2={GEMM};Conv:")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        repair_file(path, path)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [USER_NAME]


def test_a_time_file_is_never_touched(database: Callable[..., Path]) -> None:
    path = database(f"{SOUND}#\n")
    sidecar = database("123", f"{USER_NAME}.time")
    stamp = sidecar.stat()
    repair_file(path, path)
    assert (sidecar.read_text(), sidecar.stat().st_mtime_ns) == ("123", stamp.st_mtime_ns)
    assert not path.with_name("copy.time").exists()


def test_a_merge_waits_for_a_live_miopen(database: Callable[..., Path]) -> None:
    """Another process holds MIOpen's lock while it appends a record; the merge must see all of it."""
    path = database(SOUND)
    (lock,) = lock_paths(path)
    lock.parent.mkdir()
    lock.touch()
    writer = """
import fcntl, sys
lock = open(sys.argv[1], "r+")
fcntl.lockf(lock, fcntl.LOCK_EX)
database = open(sys.argv[2], "a")
database.write(sys.argv[3][:40]); database.flush()
print("half", flush=True)
sys.stdin.readline()
database.write(sys.argv[3][40:]); database.flush()
"""
    record = f"{FORWARD}_g2={GEMM}\n"
    process = subprocess.Popen(
        [sys.executable, "-c", writer, str(lock), str(path), record],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout and process.stdin and process.stdout.readline() == "half\n"
        merge = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from pathlib import Path; from warmup.miopen.mending import merge_files; "
                "print('ready', flush=True); merge_files(Path(sys.argv[1]), [Path(sys.argv[1])])",
                str(path),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        with merge:
            assert merge.stdout and merge.stdout.readline() == "ready\n"
            process.stdin.write("\n")
            process.stdin.flush()
    assert merge.returncode == 0
    assert path.read_text() == SOUND + record


def test_files_are_merged_and_damage_of_a_source_set_aside(database: Callable[..., Path], tmp_path: Path) -> None:
    first = database(SOUND, "gfx942130.HIP.fdb.txt")
    second = database(f"#\n{FORWARD}={NAIVE}\n{FORWARD}_g2={NAIVE}\n")
    out = tmp_path / "out.ufdb.txt"
    report = merge_files(out, [first, second])
    assert (report.records, report.present, report.added, report.improved) == (5, 4, 1, 0)
    assert [path.read_text().splitlines()[1] for path in report.aside] == ["#"]
    assert set(FindDb.read(out, "find")) == {FORWARD, BACKWARD, WEIGHTS, DEPTH, f"{FORWARD}_g2"}


def test_foreign_files_are_merged_only_by_force(database: Callable[..., Path], tmp_path: Path) -> None:
    files = [database(SOUND), database(SOUND, "gfx90a68.HIP.3_4_0_.ufdb.txt")]
    with pytest.raises(MergeRefused, match="different device"):
        merge_files(tmp_path / "out", files)
    with pytest.raises(MergeRefused, match="different device"):
        merge_files(tmp_path / "gfx90a68.HIP.3_4_0_.ufdb.txt", files[:1])
    assert not (tmp_path / "out").exists()
    assert merge_files(tmp_path / "out", files, force=True).records == 4


def test_an_empty_source_adds_nothing(database: Callable[..., Path], tmp_path: Path) -> None:
    empty = database("", "gfx942130.HIP.3_4_0_.ufdb.txt")
    other = database(SOUND, "shard")
    assert merge_files(tmp_path / "out", [empty, other]).added == 4


def test_other_kinds_do_not_mix(database: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(MergeRefused, match="different kinds"):
        merge_files(tmp_path / "out", [database(SOUND, "a"), database(TEXT, "b")])


def test_perf_dbs_merge_from_and_into_both_forms(database: Callable[..., Path], tmp_path: Path) -> None:
    write_sqlite({KEY: {"Other": "1"}}, tmp_path / "b")
    sources = [database(TEXT, "a"), tmp_path / "b"]
    for out in (tmp_path / "gfx942130_1.1.0.udb", tmp_path / "gfx942130.HIP.3_4_0_.udb.txt"):
        report = merge_files(out, sources)
        assert (report.records, report.added, report.improved) == (2, 0, 1)
        assert PerfDb.read(out).records == {**RECORDS, KEY: {**RECORDS[KEY], "Other": "1"}}
        assert check(out) == []


def test_perf_dbs_are_repaired_in_both_forms(database: Callable[..., Path], tmp_path: Path) -> None:
    report = repair_file(database(f"{TEXT}#\n", "a"), tmp_path / "text")
    assert (report.records, report.lost) == (2, 1)
    write_sqlite(RECORDS, tmp_path / "b.db")
    assert repair_file(tmp_path / "b.db", tmp_path / "c.db").records == 2
    assert PerfDb.read(tmp_path / "c.db").records == RECORDS


def test_kernel_caches_merge_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    first, second, bad = tmp_path / "a.ukdb", tmp_path / "b.ukdb", tmp_path / "c.ukdb"
    kernelcache.write(first, [kernel("a.o", b"one"), kernel("b.o", b"two")])
    kernelcache.write(second, [kernel("a.o", b"other"), kernel("c.o", b"three")])
    kernelcache.write(bad, [kernel("a.o", b"one", digest="0" * 32)])
    report = merge_files(tmp_path / "out", [first, second])
    assert (report.records, report.present, report.added) == (3, 2, 1)
    assert [conflict.key for conflict in report.conflicts] == ["a.o  -mcpu=gfx942"]
    with pytest.raises(NotADatabase, match="repair it first"):
        merge_files(tmp_path / "out2", [first, bad])


def test_a_kernel_cache_keeps_its_good_rows(tmp_path: Path) -> None:
    path, out = tmp_path / "gfx942130.ukdb", tmp_path / "out.ukdb"
    kernelcache.write(path, [kernel("a.o", b"one"), kernel("b.o", b"two", digest="0" * 32)])
    before = path.read_bytes()
    report = repair_file(path, out)
    assert (report.records, report.lost) == (1, 1)
    assert [row.name for row in kernelcache.kernels(out)] == ["a.o"]
    assert report.aside and report.aside.read_bytes() == before
    assert kernelcache.check(out) == []


def test_a_file_that_sqlite_cannot_read_becomes_an_empty_cache(tmp_path: Path) -> None:
    path = tmp_path / "gfx942130.ukdb"
    path.write_bytes(b"garbage" * 100)
    report = repair_file(path, path)
    assert report.records == 0
    assert report.aside and report.aside.read_bytes() == b"garbage" * 100
    assert check(path) == []


def test_the_journal_of_the_file_that_was_there_goes(tmp_path: Path) -> None:
    out = tmp_path / "gfx942130.ukdb"
    out.touch()
    stale = tmp_path / "gfx942130.ukdb-wal"
    stale.write_bytes(b"stale")
    kernelcache.write(tmp_path / "a.ukdb", [kernel("a.o", b"one")])
    merge_files(out, [tmp_path / "a.ukdb"])
    assert not stale.exists()
    assert len(kernelcache.digests(out)) == 1
