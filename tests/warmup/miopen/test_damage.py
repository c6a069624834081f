"""One fixture for every row of the table of damage that the real MIOpen was seen to meet, and that a file can show."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmup.miopen.damage import check_text
from warmup.miopen.finddb import FindDb
from warmup.miopen.names import DbName
from warmup.miopen.perfdb import PerfDb
from warmup.miopen.repair import mend

from .conftest import BACKWARD, DEPTH, FORWARD, GEMM, LEGACY, NAIVE, SOUND, WEIGHTS, WINOGRAD

BWD = "GemmBwdRest:6.18466,7375872,miopenConvolutionBwdDataAlgoGEMM"
# What the file holds, the codes found, the line of the first, and what the mended file holds.
TABLE = {
    "cut after the solver": (f"{FORWARD}={GEMM};ConvBin:\n", ["cut-record"], 1, f"{FORWARD}={GEMM}\n"),
    "missing algorithm": (f"{FORWARD}={GEMM};ConvBin:0.1,0\n", ["cut-record"], 1, f"{FORWARD}={GEMM}\n"),
    "empty algorithm": (f"{FORWARD}={GEMM};ConvAsm3x3U:0.1,0,\n", ["bad-algorithm"], 1, f"{FORWARD}={GEMM}\n"),
    "unknown algorithm": (f"{FORWARD}={GEMM};ConvAsm3x3U:0.1,0,magic\n", ["bad-algorithm"], 1, f"{FORWARD}={GEMM}\n"),
    "algorithm of another direction": (f"{FORWARD}={GEMM};{BWD}\n", ["bad-algorithm"], 1, f"{FORWARD}={GEMM}\n"),
    "no final newline": (f"{FORWARD}={GEMM}", ["no-final-newline"], None, f"{FORWARD}={GEMM}\n"),
    "glued": (
        f"{FORWARD}={GEMM}{BACKWARD}={BWD}\n{DEPTH}={GEMM}\n",
        ["glued-lines"],
        1,
        f"{FORWARD}={GEMM}\n{BACKWARD}={BWD}\n{DEPTH}={GEMM}\n",
    ),
    "glued to a cut one": (
        f"{DEPTH}={GEMM}\n{FORWARD}={NAIVE};{GEMM[:-3]}{BACKWARD}={BWD}\n",
        ["glued-lines", "bad-algorithm"],
        2,
        f"{DEPTH}={GEMM}\n{FORWARD}={NAIVE}\n{BACKWARD}={BWD}\n",
    ),
    "cut inside the key": (
        f"{DEPTH}={GEMM}\n{FORWARD[:30]}",
        ["ill-formed", "no-final-newline"],
        2,
        f"{DEPTH}={GEMM}\n",
    ),
    "the head of the key is lost": (f"{FORWARD[4:]}={GEMM}\n{DEPTH}={GEMM}\n", ["bad-key"], 1, f"{DEPTH}={GEMM}\n"),
    "zeros": ("\0" * 64 + f"\n{DEPTH}={GEMM}\n", ["leading-junk", "ill-formed"], 1, f"{DEPTH}={GEMM}\n"),
    "zeros before a record": ("\0" * 64 + f"{DEPTH}={GEMM}\n", ["leading-junk"], 1, f"{DEPTH}={GEMM}\n"),
    "a comment": (f"# tuned by hand\n{DEPTH}={GEMM}\n", ["ill-formed"], 1, f"{DEPTH}={GEMM}\n"),
    "no key": (f"=x\n{DEPTH}={GEMM}\n", ["ill-formed"], 1, f"{DEPTH}={GEMM}\n"),
    "an empty record": (f"{DEPTH}={GEMM}\n{FORWARD}=\n", ["empty-record"], 2, f"{DEPTH}={GEMM}\n"),
    "an empty record, then a good one": (
        f"{FORWARD}=\n{FORWARD}={GEMM}\n",
        ["empty-record", "duplicate-key"],
        1,
        f"{FORWARD}={GEMM}\n",
    ),
    "duplicate key": (f"{FORWARD}={GEMM}\n{FORWARD}={NAIVE}\n", ["duplicate-key"], 2, f"{FORWARD}={GEMM}\n"),
    "a damaged record, then a good one": (
        f"{FORWARD}={NAIVE};Conv:\n{FORWARD}={GEMM};{NAIVE}\n",
        ["cut-record", "duplicate-key"],
        1,
        f"{FORWARD}={GEMM};{NAIVE}\n",
    ),
    "duplicate solver": (
        f"{FORWARD}={GEMM};{WINOGRAD};GemmFwdRest:9,0,miopenConvolutionFwdAlgoGEMM\n",
        ["duplicate-solver"],
        1,
        f"{FORWARD}={GEMM};{WINOGRAD}\n",
    ),
    "time abc": (f"{FORWARD}={GEMM};fft:abc,0,miopenConvolutionFwdAlgoFFT\n", ["bad-time"], 1, f"{FORWARD}={GEMM}\n"),
    "time nan": (f"{FORWARD}={GEMM};fft:nan,0,miopenConvolutionFwdAlgoFFT\n", ["bad-time"], 1, f"{FORWARD}={GEMM}\n"),
    "time -1": (f"{FORWARD}={GEMM};fft:-1,0,miopenConvolutionFwdAlgoFFT\n", ["bad-time"], 1, f"{FORWARD}={GEMM}\n"),
    "workspace -1": (
        f"{FORWARD}={GEMM};fft:1,-1,miopenConvolutionFwdAlgoFFT\n",
        ["bad-workspace"],
        1,
        f"{FORWARD}={GEMM}\n",
    ),
    "workspace 2^64 - 1": (
        f"{FORWARD}={GEMM};fft:1,18446744073709551615,miopenConvolutionFwdAlgoFFT\n",
        ["bad-workspace"],
        1,
        f"{FORWARD}={GEMM}\n",
    ),
    "CRLF": (f"{FORWARD}={GEMM}\r\n{DEPTH}={GEMM}\r\n", ["crlf", "crlf"], 1, f"{FORWARD}={GEMM}\n{DEPTH}={GEMM}\n"),
    "BOM": (f"\xef\xbb\xbf{FORWARD}={GEMM}\n", ["leading-junk"], 1, f"{FORWARD}={GEMM}\n"),
    "leading space": (f" {FORWARD}={GEMM}\n", ["leading-junk"], 1, f"{FORWARD}={GEMM}\n"),
    "leading space and the record that MIOpen appended": (
        f" {FORWARD}={NAIVE}\n{FORWARD}={GEMM}\n",
        ["leading-junk"],
        1,
        f"{FORWARD}={GEMM}\n",
    ),
    "disk full": (f"{DEPTH}={GEMM}\n{FORWARD}={GEMM};{NAIVE[:-9]}", ["bad-algorithm", "no-final-newline"], 2, None),
}


def _find(text: str) -> FindDb:
    return FindDb(text.encode("latin-1"))


@pytest.mark.parametrize("row", TABLE)
def test_each_row_is_found_where_it_is(row: str) -> None:
    text, codes, line, _ = TABLE[row]
    findings = check_text(_find(text), "db")
    assert [finding.code for finding in findings] == codes
    assert findings[0].line == line
    assert findings[0].where == (f"db:{line}" if line else "db")
    assert all(finding.what and finding.why and finding.repairable for finding in findings)


@pytest.mark.parametrize("row", TABLE)
def test_each_row_is_mended(row: str) -> None:
    text, _, _, expected = TABLE[row]
    mended = mend(_find(text))
    if expected is not None:
        assert mended.data.decode("latin-1") == expected
    assert check_text(FindDb(mended.data), "db") == []


@pytest.mark.parametrize("row", TABLE)
def test_nothing_vanishes(row: str) -> None:
    """Every solver that the file names is in the mended file or in what was set aside."""
    text = TABLE[row][0]
    mended = mend(_find(text))
    kept = mended.data + mended.aside_text
    for name in ("GemmFwdRest", "ConvDirectNaiveConvFwd", "GemmBwdRest", "fft", "ConvBin", "# tuned by hand", "=x"):
        assert kept.count(name.encode()) >= min(1, text.count(name))
    assert sum(kept.count(key.encode()) for key in (FORWARD, BACKWARD, DEPTH)) >= sum(
        text.count(key) for key in (FORWARD, BACKWARD, DEPTH)
    )


@pytest.mark.parametrize("text", [SOUND, LEGACY, SOUND + "\n\n" + LEGACY.replace(FORWARD, FORWARD + "_g2")])
def test_a_sound_file_has_no_findings_and_stays_as_it_is(text: str) -> None:
    database = _find(text)
    assert check_text(database, "db") == []
    assert mend(database).data is database.data


def test_an_unknown_solver_is_told_but_kept() -> None:
    text = f"{FORWARD}=ConvFromTheFuture:0.1,0,miopenConvolutionFwdAlgoDirect\n"
    (finding,) = check_text(_find(text), "db")
    assert (finding.code, finding.repairable) == ("unknown-solver", False)
    assert "ConvFromTheFuture" in finding.what
    assert mend(_find(text)).data == text.encode()


def test_a_file_of_a_later_miopen_may_have_other_solvers() -> None:
    text = f"{FORWARD}=ConvFromTheFuture:0.1,0,miopenConvolutionFwdAlgoDirect\n".encode()
    later = FindDb(text, name=DbName.parse("gfx942130.HIP.9_0_0_.ufdb.txt"))
    assert check_text(later, "db") == []


def test_an_empty_file_is_told() -> None:
    (finding,) = check_text(_find(""), "db")
    assert (finding.code, finding.repairable) == ("empty-file", False)


def test_other_lines_of_a_damaged_file_are_fine() -> None:
    damage = f"#\n{SOUND}=x\n{WEIGHTS[:9]}\n"
    assert mend(_find(damage)).data.decode() == SOUND
    assert [finding.line for finding in check_text(_find(damage), "db")] == [1, 6, 7]


def test_what_was_set_aside_says_where_it_was_and_why() -> None:
    mended = mend(_find(f"{DEPTH}={GEMM}\n{FORWARD}={GEMM};ConvBin:\n"))
    first, second = mended.aside_text.decode().splitlines()
    assert first.startswith("# line 2: cut-record: item 'ConvBin:' is cut short")
    assert second == f"{FORWARD}=ConvBin:"
    assert (mended.saved, len(mended.aside)) == (1, 1)


PERF = "2x64x56x56x1x3x3x1x64x16x1x1x0x1x1x0x1x1x0x0x1xNCHWxFP32xF"


@pytest.mark.parametrize(
    ("text", "codes", "expected"),
    [
        (f"{PERF}=A:1,2;B:3\n", [], None),
        (f"{PERF}=A:1,2;B\n", ["cut-record"], f"{PERF}=A:1,2\n"),
        (f"{PERF}=A:1,2{PERF[:-1]}B=B:3\n", ["glued-lines"], f"{PERF}=A:1,2\n{PERF[:-1]}B=B:3\n"),
        (f"{PERF}=A:1\n{PERF}=A:2", ["duplicate-key", "no-final-newline"], f"{PERF}=A:1\n"),
        (f"{FORWARD}={GEMM}\n{PERF}=A:1\n", ["bad-key"], f"{PERF}=A:1\n"),
    ],
)
def test_perf_dbs_are_checked_by_their_own_grammar(text: str, codes: list[str], expected: str | None) -> None:
    database = PerfDb.parse(text.encode())
    assert [finding.code for finding in check_text(database, "db")] == codes
    assert mend(database).data.decode() == (text if expected is None else expected)


def test_shipped_databases_are_sound(shipped: Path) -> None:
    database = FindDb.read(shipped / "gfx942130.HIP.fdb.txt.bz2")
    assert check_text(database, "db") == []
