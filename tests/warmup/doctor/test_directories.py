from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from warmup.doctor.directories import check_directories, check_system_databases, user_directories
from warmup.doctor.finding import Severity
from warmup.doctor.system import miopens
from warmup.miopen.names import Device

MI300X = Device("gfx942", 304)
NAME = "gfx942130.HIP.3_4_0_.ufdb.txt"
KEY = "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F"
GOOD = f"{KEY}=ConvDirectNaiveConvFwd:0.5,0,miopenConvolutionFwdAlgoDirect\n"


@pytest.fixture
def database(healthy) -> Path:
    """A user find-db in its place; to be filled."""
    path = Path(healthy["HOME"]) / ".config/miopen" / NAME
    path.parent.mkdir(parents=True)
    path.write_text(GOOD)
    return path


def topics(variables, root: Path = Path("/nonexistent"), device: Device | None = MI300X) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.topic) for finding in check_directories(variables, root, device)]


def test_where_miopen_keeps_its_files(healthy):
    home = Path(healthy["HOME"])
    assert user_directories(healthy) == {"db": home / ".config/miopen", "cache": home / ".cache/miopen"}
    named = {**healthy, "MIOPEN_USER_DB_PATH": "~/db", "MIOPEN_CUSTOM_CACHE_DIR": "/cache"}
    assert user_directories(named) == {"db": home / "db", "cache": Path("/cache")}
    assert user_directories({"TMPDIR": "/scratch"})["db"] == Path("/scratch/.config/miopen")


def test_a_sound_database_and_directories_that_are_still_to_be_made(healthy, database):
    assert topics(healthy) == []


def test_damage_is_told_once_for_each_kind_with_its_repair(healthy, database):
    database.write_text(GOOD + "no key\n" + "again\n" + f"{KEY.replace('-16-', '-8-')}=ConvAsm3x3U:")
    findings = {finding.topic: finding for finding in check_directories(healthy, Path("/nonexistent"), MI300X)}
    assert set(findings) == {"database-ill-formed", "database-cut-record", "database-no-final-newline"}
    assert findings["database-cut-record"].severity is Severity.ERROR
    assert findings["database-ill-formed"].what.endswith("and 1 more of this kind")
    assert f"preheat db repair {database}" in findings["database-cut-record"].do


def test_an_empty_database(healthy, database):
    database.write_text("")
    assert topics(healthy) == [(Severity.WARNING, "database-empty-file")]


def test_a_database_of_another_gpu_is_only_noted(healthy, database):
    assert topics(healthy, device=Device("gfx90a", 104)) == [(Severity.NOTE, "database-foreign")]


def test_a_kernel_cache_that_is_no_database(healthy):
    cache = Path(healthy["HOME"]) / ".cache/miopen/gfx942130.ukdb"
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    ((severity, _),) = topics(healthy)
    assert severity is Severity.ERROR
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(cache).execute("select 1 from sqlite_master").fetchall()


@pytest.mark.parametrize(("named", "severity"), [(False, Severity.WARNING), (True, Severity.ERROR)])
def test_a_network_file_system(healthy, tmp_path, named, severity):
    home = healthy["HOME"]
    mounts = tmp_path / "root/proc/self/mounts"
    mounts.parent.mkdir(parents=True)
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/home {home} nfs4 rw 0 0\ntmpfs {home}/fast tmpfs rw 0 0\n")
    variables = dict(healthy)
    if named:
        variables |= {"MIOPEN_USER_DB_PATH": f"{home}/db", "MIOPEN_CUSTOM_CACHE_DIR": f"{home}/fast/cache"}
    root = tmp_path / "root"
    assert topics(variables, root) == [(severity, "directory")] * (1 if named else 2)


def test_directories_that_cannot_be_written(healthy, database, monkeypatch):
    monkeypatch.setattr("warmup.doctor.directories.os.access", lambda path, mode: not mode & os.W_OK)
    found = [
        finding for finding in check_directories(healthy, Path("/nonexistent"), MI300X) if finding.topic == "directory"
    ]
    assert [finding.severity for finding in found] == [Severity.ERROR] * 2
    assert "cannot be written" in found[0].what and "cannot be created in" in found[1].what


def test_directories_of_another_user(healthy, database, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr("warmup.doctor.directories.os.geteuid", lambda: owner + 1)
    findings = check_directories(healthy, Path("/nonexistent"), MI300X)
    assert any(f.topic == "directory" and f"user {owner + 1}" in f.what for f in findings)


@pytest.mark.parametrize(("free", "severity"), [(50 << 20, Severity.WARNING), (1000, Severity.ERROR)])
def test_a_disk_that_is_nearly_full(healthy, database, monkeypatch, free, severity):
    usage = shutil.disk_usage(healthy["HOME"])
    monkeypatch.setattr("warmup.doctor.directories.shutil.disk_usage", lambda path: usage._replace(free=free))
    findings = check_directories(healthy, Path("/nonexistent"), MI300X)
    assert [(finding.severity, finding.topic) for finding in findings] == [(severity, "directory")] * 2
    assert f"{free >> 20} MiB are free" in findings[0].what


def test_what_cannot_be_mended_says_what_to_do_instead(healthy, database):
    database.rename(database.with_name("elsewhere"))
    database.symlink_to("elsewhere")
    (finding,) = check_directories(healthy, Path("/nonexistent"), MI300X)
    assert (finding.topic, finding.do) == ("database-symlink", "put the file itself there")


def test_a_path_through_a_file(healthy, tmp_path):
    (tmp_path / "file").write_text("")
    variables = {**healthy, "MIOPEN_USER_DB_PATH": str(tmp_path / "file/db")}
    assert topics(variables) == [(Severity.ERROR, "directory")]


def test_a_migraphx_cache_that_does_not_exist(healthy, tmp_path):
    assert topics({**healthy, "ORT_MIGRAPHX_MODEL_CACHE_PATH": str(tmp_path / "none")}) == [
        (Severity.ERROR, "directory")
    ]
    assert topics({**healthy, "ORT_MIGRAPHX_MODEL_CACHE_PATH": str(tmp_path)}) == []


def test_shipped_databases_count_only_under_their_exact_name(nodes):
    full = miopens(nodes / "mi300x-spx", packages=False)
    assert check_system_databases(full, [MI300X]) == []
    findings = check_system_databases(full, [Device("gfx942", 38), Device("gfx942", 38)])
    assert [(finding.severity, finding.topic) for finding in findings] == [
        (Severity.WARNING, "system-db"),
        (Severity.NOTE, "system-db"),
    ]
    assert "gfx942_38.HIP.fdb.txt" in findings[0].what
    xnack = check_system_databases(full, [Device("gfx942", 304, xnack=True)])
    assert "gfx942_xnack130" in xnack[0].what
