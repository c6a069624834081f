from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.cli import app
from warmup.miopen.perfdb import write_sqlite

KEY = "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F"
GEMM = "GemmFwdRest:0.811666,3612672,miopenConvolutionFwdAlgoGEMM"
NAIVE = "ConvDirectNaiveConvFwd:2.14738,0,miopenConvolutionFwdAlgoDirect"
NAME = "gfx942130.HIP.3_4_0_.ufdb.txt"


@pytest.fixture(autouse=True)
def locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("locks")))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_text(f"{KEY}={GEMM};{NAIVE}\n")
    return path


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "damaged" / NAME
    path.parent.mkdir()
    path.write_text(f"{KEY}={GEMM};Conv:\n#\n")
    return path


def _db(*arguments: object):
    return CliRunner().invoke(app, ["db", *map(str, arguments)])


def _json(*arguments: object):
    return json.loads(_db(*arguments, "--json").stdout)


def test_show_says_what_a_file_is(sound: Path) -> None:
    facts = _json("show", sound)
    assert (facts["kind"], facts["arch"], facts["cu_count"], facts["version"]) == ("find", "gfx942", 304, "3.4.0")
    assert (facts["format"], facts["records"], facts["solvers"]) == ("2.0", 1, 2)
    assert facts["bytes"] == sound.stat().st_size
    assert "gfx942" in _db("show", sound).stdout


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, command: str) -> None:
    pipe = tmp_path / NAME
    os.mkfifo(pipe)
    arguments = [sys.executable, "-m", "serving", "db", command, str(pipe)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"preheat: {pipe} is not a regular file\n")


@pytest.mark.parametrize("command", ["repair", "merge"])
def test_nothing_is_written_over_a_pipe_or_a_device(damaged: Path, tmp_path: Path, command: str) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for out in (pipe, link):
        done = _db(command, damaged, "-o", out)
        assert (done.exit_code, done.stderr) == (2, f"preheat: {out} is not a regular file\n")
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "link", "pipe"]


@pytest.mark.parametrize("ending", ["ufdb.txt", "udb"])
def test_a_target_without_a_directory_is_named_as_it_was_given(sound: Path, tmp_path: Path, ending: str) -> None:
    source = sound
    if ending == "udb":
        source = tmp_path / "gfx942130_1.1.0.udb"
        write_sqlite({}, source)
    out = tmp_path / "nowhere" / source.name
    done = _db("repair", source, "-o", out)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert str(out) in done.stderr


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("gfx942130_1.1.0.udb", ("config (id, other)", "perf_db (id, solver, config, params)")),
        ("gfx942130_1.1.0.udb", ("config (id)", "perf_db (id)")),
        ("gfx942.ukdb", ("kern_db (id INTEGER PRIMARY KEY, other)",)),
    ],
)
def test_a_file_with_other_columns_is_a_finding(tmp_path: Path, name: str, tables: tuple[str, ...]) -> None:
    path = tmp_path / name
    with closing(sqlite3.connect(path)) as database:
        for table in tables:
            database.execute(f"CREATE TABLE {table}")
    done = _db("check", path, "--json")
    assert done.exit_code == 1
    assert ["no such column" in finding["what"] for finding in json.loads(done.stdout)["findings"]] == [True]


def test_check_ends_with_one_where_there_are_findings(sound: Path, damaged: Path) -> None:
    good, bad = _db("check", sound, "--json"), _db("check", damaged, "--json")
    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert json.loads(good.stdout)["findings"] == []
    findings = json.loads(bad.stdout)["findings"]
    assert [(finding["code"], finding["line"], finding["repairable"]) for finding in findings] == [
        ("cut-record", 1, True),
        ("ill-formed", 2, True),
    ]
    assert findings[0]["key"] == KEY
    assert "no findings" in _db("check", sound).stdout
    assert _db("check", damaged).exit_code == 1


def test_what_looks_like_markup_is_printed_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "[bold]" / NAME
    path.parent.mkdir()
    path.write_text(f"{KEY}={GEMM};A[/]:\n[/nothing]\n")
    result = _db("check", path)
    assert result.exit_code == 1
    assert "[/nothing]" in result.stdout and "A[/]:" in result.stdout


def test_check_knows_the_device_that_a_file_is_for(sound: Path) -> None:
    assert _db("check", sound, "--device", "gfx942:xnack-/304", "--version", "3.4.0").exit_code == 0
    foreign = _db("check", sound, "--device", "gfx90a/104", "--version", "3.5.0", "--json")
    assert {finding["code"] for finding in json.loads(foreign.stdout)["findings"]} == {"foreign"}
    assert _db("check", sound, "--device", "navi").exit_code == 2


def test_repair_mends_a_copy(damaged: Path, tmp_path: Path) -> None:
    before = damaged.read_bytes()
    out = tmp_path / "mended"
    report = _json("repair", damaged, "-o", out)
    assert (report["records"], report["saved"], report["lost"]) == (1, 1, 2)
    assert report["aside"] == f"{out}.set-aside"
    assert damaged.read_bytes() == before
    assert out.read_text() == f"{KEY}={GEMM}\n"
    assert _db("check", out).exit_code == 0


def test_merge_joins_and_tells_conflicts(sound: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(f"{KEY}={NAIVE.replace('2.14738', '0.5')}\n{KEY}_g2={GEMM}\n")
    out = tmp_path / "out"
    report = _json("merge", "-o", out, sound, other)
    assert (report["records"], report["present"], report["added"], report["improved"]) == (2, 1, 1, 1)
    assert report["conflicts"][0]["key"] == KEY
    told = _db("merge", "-o", out, sound, other)
    assert told.exit_code == 0
    assert "ConvDirectNaiveConvFwd" in told.stderr


def test_merge_refuses_another_gpus_database(sound: Path, tmp_path: Path) -> None:
    other = tmp_path / "gfx90a68.HIP.3_4_0_.ufdb.txt"
    other.write_text(f"{KEY}={GEMM}\n")
    result = _db("merge", "-o", tmp_path / "out", sound, other)
    assert result.exit_code == 2
    assert result.stderr == f"preheat: databases of different device: {NAME}, {other.name}\n"
    assert not (tmp_path / "out").exists()
    assert _db("merge", "--force", "-o", tmp_path / "out", sound, other).exit_code == 0


def test_diff_ends_with_one_where_choices_differ(sound: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(f"{KEY}={NAIVE}\n")
    assert _db("diff", sound, sound).exit_code == 0
    result = _db("diff", sound, other, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["lost_ms"] == pytest.approx(2.14738 - 0.811666)
    assert document["changed"][0]["new"] == "ConvDirectNaiveConvFwd"
    assert "1 choose another solver" in _db("diff", sound, other).stdout


def test_ls_lists_databases_and_nothing_else(sound: Path, damaged: Path, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.time").write_text("1")
    (tmp_path / "gfx906_60.HIP.fdb.txt").write_text("garbage\n")
    rows = _json("ls", tmp_path)
    assert {row["file"]: row["kind"] for row in rows} == {
        str(sound): "find",
        str(damaged): "find",
        str(tmp_path / "gfx906_60.HIP.fdb.txt"): "damaged",
    }
    assert _db("ls", tmp_path / "nowhere").exit_code == 2


def test_ls_looks_where_miopen_does(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(sound.parent / "home"))
    monkeypatch.setenv("MIOPEN_USER_DB_PATH", str(sound.parent))
    monkeypatch.setenv("MIOPEN_SYSTEM_DB_PATH", str(sound.parent / "none"))
    assert [row["file"] for row in _json("ls")] == [str(sound)]


@pytest.mark.parametrize(
    "command", [("show",), ("check",), ("repair", "-o", "out"), ("merge", "-o", "out"), ("diff", "{}")]
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0\n")
    arguments = [
        part.format(path) if part == "{}" else str(tmp_path / part) if part == "out" else part for part in command
    ]
    result = _db(*arguments, path)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert str(path) in result.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["passwd"]


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_missing_file_is_an_error(tmp_path: Path, command: str) -> None:
    result = _db(command, tmp_path / "none")
    assert result.exit_code == 2
    assert "No such file" in result.stderr
