from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.cli import app

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "miopen" / "keys.tsv"
LINE = "./bin/MIOpenDriver convfp16 -n 8 -c 16 -H 17 -W 33 -k 24 -y 5 -x 3 -p 2 -q 0 -u 3 -v 1 -l 1 -j 2 -g 1 -F 2 -t 1"
KEY = "24-6-29-5x3-16-17-33-8-2x0-3x1-1x2-0-NCHW-FP16-B"


def _key(text: str, *arguments: str):
    return CliRunner().invoke(app, ["key", *arguments], input=text)


def test_lines_and_keys_become_keys_one_a_line() -> None:
    result = _key(f"{LINE}\n\n# a note\n{KEY}\nMIOpen(HIP): Command [LogCmdFindConvolution] {LINE}\n")
    assert (result.exit_code, result.stdout) == (0, f"{KEY}\n{KEY}\n{KEY}\n")


def test_all_directions_give_a_key_each() -> None:
    result = _key(LINE.replace("-F 2", "-F 0"))
    assert [key[-1] for key in result.stdout.split()] == ["F", "B", "W"]


def test_json_gives_one_object_a_line() -> None:
    result = _key(f"{LINE}\n{KEY}\n", "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["key"], first["line"], second["line"]) == (KEY, 1, 2)
    assert (first["batch"], first["in_channels"], first["in_spatial"], first["direction"]) == (8, 16, [17, 33], "B")
    assert first["ambiguous"] == second["ambiguous"] == []
    assert first["perf_db_key"].startswith("2x24x6x29x1x5x3x1x16x8x2x0x0x")


def test_an_ambiguous_line_is_told_and_decided_by_an_option() -> None:
    told = _key("convint8 -c 8 -k 8 -F 1\n")
    assert told.exit_code == 0
    assert "INT8INT8INT32-F" in told.stdout
    assert "1 ambiguous: convint8 does not name the output's dtype" in told.stderr
    decided = _key("convint8 -c 8 -k 8 -F 1\nconv -F 1\n", "--dtype", "INT8")
    assert decided.stdout.splitlines()[0].endswith("NCHW-INT8-F")
    assert _key("conv -F 1\n", "--dtype", "FP64").stdout.endswith("NCHW-FP64-F\n")
    assert "allowed are FP32" in _key("conv -F 1\n", "--dtype", "double").stderr


def test_what_is_no_problem_is_told_by_line_and_the_others_are_done() -> None:
    result = _key(f"conv --bogus 1\n{KEY}\n{KEY[:30]}\nhello\n")
    assert (result.exit_code, result.stdout) == (1, f"{KEY}\n")
    first, second, third = result.stderr.splitlines()
    assert first == "preheat: line 1: unknown flag '--bogus' of MIOpenDriver's convolution"
    assert second.startswith("preheat: line 3: key") and "cut short" in second
    assert third == "preheat: line 4: key 'hello': in channels is 'hello'"


def test_real_lines_give_real_keys() -> None:
    if not SHARED.is_file():
        pytest.skip(f"no real rows on this machine: {SHARED} is absent")
    rows = [line.split("\t") for line in SHARED.read_text().splitlines()[1:]]
    # FP8 and FP64 print as plain conv: not to be told from FP32 by the line alone. MIOpen has no int8 W.
    rows = [row for row in rows if row[1] not in ("fp8", "double") and row[3]]
    result = _key("\n".join(row[4] for row in rows))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [row[3] for row in rows]


def test_only_what_a_database_lacks_each_once(tmp_path: Path) -> None:
    database = tmp_path / "gfx942130.HIP.3_4_0_.ufdb.txt"
    database.write_text(f"{KEY}=ConvDirectNaiveConvBwd:0.5,0,miopenConvolutionBwdDataAlgoDirect\n")
    other = KEY.replace("-8-2x0", "-16-2x0")
    result = _key(f"{LINE}\n{other}\n{other}\n{LINE.replace('-n 8', '-n 16')}\n", "--missing-from", str(database))
    assert (result.exit_code, result.stdout) == (0, f"{other}\n")
    result = _key(f"{LINE}\n", "--missing-from", str(tmp_path / "absent.ufdb.txt"))
    assert result.exit_code == 2 and "absent.ufdb.txt" in result.stderr


def test_bytes_that_are_no_text_are_one_line_that_is_no_problem() -> None:
    result = CliRunner().invoke(app, ["key"], input=b"\xff\xfe\n" + KEY.encode() + b"\n")
    assert (result.exit_code, result.stdout) == (1, f"{KEY}\n")
    assert "line 1: " in result.stderr and result.stderr.count("\n") == 1


def test_a_giant_line_is_read_in_one_go() -> None:
    """A pattern that goes back and forth in it would not be done within the day."""
    result = _key("a" * 1_000_000 + f"\n{KEY}\n")
    assert (result.exit_code, result.stdout) == (1, f"{KEY}\n")


def test_a_pipe_is_not_waited_for_where_a_database_is_expected(tmp_path: Path) -> None:
    pipe = tmp_path / "find"
    os.mkfifo(pipe)
    result = _key(KEY, "--missing-from", str(pipe))
    assert (result.exit_code, result.stderr) == (2, f"preheat: {pipe} is not a regular file\n")
