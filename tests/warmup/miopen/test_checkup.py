from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.miopen import checkup
from warmup.miopen.checkup import check
from warmup.miopen.finddb import NotADatabase
from warmup.miopen.names import Device
from warmup.miopen.perfdb import write_sqlite

from .conftest import FORWARD, GEMM, SOUND, USER_NAME
from .test_perfdb import RECORDS, TEXT

DEVICE = Device.of("gfx942", 304)


@pytest.fixture(autouse=True)
def locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("locks")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def _codes(path: Path, *arguments) -> list[str]:
    return [finding.code for finding in check(path, *arguments)]


def test_a_sound_file_in_its_place_has_no_findings(database: Callable[..., Path]) -> None:
    assert check(database(SOUND), DEVICE, "3.4.0") == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("gfx90a68.HIP.3_4_0_.ufdb.txt", "foreign"),
        ("gfx942e4.HIP.3_4_0_.ufdb.txt", "foreign"),
        ("gfx942130.HIP.3_3_0_.ufdb.txt", "foreign"),
        ("gfx942130.OpenCL.3_4_0_.ufdb.txt", "wrong-name"),
        ("gfx942_304.HIP.3_4_0_.ufdb.txt", "wrong-name"),
        ("gfx942_130.HIP.3_4_0_.ufdb.txt", "wrong-name"),
        ("gfx942130.3_4_0.ufdb.txt", "wrong-name"),
    ],
)
def test_a_name_that_miopen_does_not_look_for_is_told(database: Callable[..., Path], name: str, code: str) -> None:
    findings = check(database(SOUND, name), DEVICE, "3.4.0")
    assert {(finding.code, finding.repairable) for finding in findings} == {(code, False)}


def test_what_lies_beside_a_user_database_is_looked_at(database: Callable[..., Path]) -> None:
    path = database(SOUND)
    later = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + 10**15
    database(str(later), f"{USER_NAME}.time")
    database("", f"{USER_NAME}.temp")
    assert _codes(path) == ["leftover-temp", "time-ahead"]
    database("1", f"{USER_NAME}.time")
    assert _codes(path) == ["leftover-temp"]


def test_a_link_is_told(database: Callable[..., Path], tmp_path: Path) -> None:
    target = database(SOUND, "elsewhere")
    link = tmp_path / USER_NAME
    link.symlink_to(target)
    (finding,) = check(link)
    assert finding.code == "symlink"
    assert str(target) in finding.what


def test_a_file_of_another_user_is_told(database: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = database(SOUND)
    monkeypatch.setattr(checkup.os, "geteuid", lambda: path.stat().st_uid + 1)
    (finding,) = check(path)
    assert finding.code == "foreign-owner"
    assert "SIGABRT" in finding.why


def test_a_read_only_file_is_told(database: Callable[..., Path]) -> None:
    path = database(SOUND)
    path.chmod(0o444)
    assert _codes(path) == ["read-only"]


def test_a_lock_that_cannot_be_opened_is_told(database: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = database(SOUND)
    (lock,) = checkup.lock_paths(path)
    lock.parent.mkdir()
    lock.touch()
    may = checkup.os.access
    monkeypatch.setattr(checkup.os, "access", lambda file, mode: file != lock and may(file, mode))
    assert _codes(path) == ["lock-unusable"]


def test_a_system_database_may_be_anybodys_and_read_only(database: Callable[..., Path]) -> None:
    path = database(SOUND, "gfx942130.HIP.fdb.txt")
    path.chmod(0o444)
    assert check(path, DEVICE) == []


def test_each_kind_is_checked_in_its_way(database: Callable[..., Path], tmp_path: Path) -> None:
    assert _codes(database(f"{TEXT}#\n", "gfx942130.HIP.3_4_0_.udb.txt")) == ["ill-formed"]
    write_sqlite(RECORDS, tmp_path / "gfx942130.db")
    assert check(tmp_path / "gfx942130.db") == []
    assert _codes(database(b"garbage" * 99, "gfx942130.ukdb")) == ["bad-kernels"]
    assert _codes(database(f"some, key={GEMM}\n", "gfx942130.HIP.3_4_0_.fusion.ufdb.txt")) == []
    assert _codes(database("", "gfx90a68.HIP.3_4_0_.ufdb.txt")) == ["empty-file"]


def test_a_damaged_file_under_another_name_is_checked_all_the_same(database: Callable[..., Path]) -> None:
    assert _codes(database(f"{FORWARD}={GEMM};Conv:\n", "backup")) == ["cut-record"]


def test_another_file_is_refused(database: Callable[..., Path]) -> None:
    with pytest.raises(NotADatabase, match="passwd is not a database of MIOpen"):
        check(database("root:x:0\n", "passwd"))
