from __future__ import annotations

import bz2
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.miopen.finddb import FindDb, NotADatabase, Solution

from .conftest import BACKWARD, DEPTH, FORWARD, GEMM, LEGACY, NAIVE, SOUND, WEIGHTS


def test_solvers_come_fastest_first_whatever_the_file_says() -> None:
    database = FindDb(SOUND.encode())
    assert database.get(FORWARD) == (
        Solution("ConvBinWinogradRxSf2x3g1", 5.68561e-02, 0, "miopenConvolutionFwdAlgoWinograd"),
        Solution("GemmFwdRest", 0.811666, 3612672, "miopenConvolutionFwdAlgoGEMM"),
        Solution("ConvDirectNaiveConvFwd", 2.14738, 0, "miopenConvolutionFwdAlgoDirect"),
    )
    assert database.get("1-2") is None
    assert list(database) == [FORWARD, BACKWARD, WEIGHTS, DEPTH]
    assert (len(database), database.solutions, len(database.solvers)) == (4, 6, 5)


def test_workspaces_are_wider_than_32_bits() -> None:
    assert FindDb(SOUND.encode())[BACKWARD][0].workspace == 4831838208


def test_a_line_is_given_back_as_it_was() -> None:
    assert FindDb(SOUND.encode()).line(FORWARD) == SOUND.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "format"), [(SOUND, "2.0"), (LEGACY, "1.0"), (LEGACY + SOUND[80:], "1.0 and 2.0"), ("", "2.0")]
)
def test_both_formats_are_read(text: str, format: str) -> None:
    assert FindDb(text.encode()).format == format


def test_the_old_format_gives_the_same_values() -> None:
    best = FindDb(LEGACY.encode())[FORWARD][0]
    assert best == Solution("ConvBinWinogradRxSf2x3g1", 0.12268, 0, "miopenConvolutionFwdAlgoWinograd")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{FORWARD}={GEMM}\n{FORWARD}={NAIVE}\n", ["GemmFwdRest"]),
        (f"{FORWARD}=\n{FORWARD}={NAIVE}\n", None),
        (f"{FORWARD}={GEMM};ConvBin:\n", None),
        (f"{FORWARD}={GEMM};A:1,-1,miopenConvolutionFwdAlgoGEMM\n", None),
        (f"{FORWARD}={GEMM};A:nan,0,miopenConvolutionFwdAlgoGEMM\n", ["GemmFwdRest"]),
        (f"{FORWARD}={GEMM};{GEMM}\n", ["GemmFwdRest"]),
        (f" {FORWARD}={GEMM}\n", None),
        (f"{FORWARD}={GEMM}\r\n", ["GemmFwdRest"]),
        (f"{FORWARD}={GEMM}", ["GemmFwdRest"]),
        (f"{FORWARD}={GEMM}{BACKWARD}={NAIVE}\n", None),
        (f"#\n\n=x\n{FORWARD}={GEMM}\n", ["GemmFwdRest"]),
    ],
)
def test_damage_is_read_as_miopen_would_use_it(text: str, expected: list[str] | None) -> None:
    found = FindDb(text.encode()).get(FORWARD)
    assert (None if found is None else [solution.solver for solution in found]) == expected


def test_what_was_read_slowly_is_in_its_place() -> None:
    text = f"{FORWARD}={GEMM}\r\n{BACKWARD}={SOUND.splitlines()[1].partition('=')[2]}\n{DEPTH}={NAIVE};{NAIVE}\n"
    database = FindDb(text.encode())
    assert list(database) == [FORWARD, BACKWARD, DEPTH]
    assert [database[key][0].solver for key in database] == ["GemmFwdRest", "GemmBwdRest", "ConvDirectNaiveConvFwd"]
    assert [key for key, _, _ in database.rows()] == [FORWARD, BACKWARD, DEPTH]


def test_a_time_of_zero_is_kept_and_counted() -> None:
    database = FindDb(f"{FORWARD}={GEMM};ConvAsm3x3U:0.0,0,miopenConvolutionFwdAlgoDirect\n".encode())
    assert database.zero_times == 1
    assert database[FORWARD][0].time_ms == 0


def test_lines_are_found_by_solver_and_by_wrong_direction() -> None:
    text = f"{FORWARD}={GEMM}\n{BACKWARD}={NAIVE}\n"
    database = FindDb(text.encode())
    first, second = (0, text.index("\n")), (text.index("\n") + 1, len(text) - 1)
    assert database.lines_of({"GemmFwdRest"}) == [first]
    assert database.lines_of({"GemmFwdRest", "ConvDirectNaiveConvFwd"}) == [first, second]
    assert database.lines_of({"fft"}) == []
    assert database.lines_against_direction() == [second]


def test_files_are_read_compressed_or_not(database: Callable[..., Path]) -> None:
    plain = FindDb.read(database(SOUND, "gfx90a68.HIP.fdb.txt"))
    packed = FindDb.read(database(bz2.compress(SOUND.encode()), "gfx90a68.HIP.fdb.txt.bz2"))
    assert list(plain.items()) == list(packed.items())
    assert plain.name and packed.name and packed.name.device == plain.name.device
    assert packed.name.bz2


def test_a_fusion_file_has_keys_of_its_own(database: Callable[..., Path]) -> None:
    found = FindDb.read(database(f"16, 64, 56, 56, FP32 1x1={GEMM}\n", "gfx942130.HIP.3_4_0_.fusion.ufdb.txt"))
    assert found.kind == "fusion"
    assert found["16, 64, 56, 56, FP32 1x1"][0].solver == "GemmFwdRest"


def test_an_empty_file_is_a_database_without_records(database: Callable[..., Path]) -> None:
    assert len(FindDb.read(database(""))) == 0


@pytest.mark.parametrize("content", [b"root:x:0:0\n", b"BZh9 not bzip2", b"SQLite format 3\0 and so on"])
def test_another_file_is_refused(database: Callable[..., Path], content: bytes) -> None:
    with pytest.raises(NotADatabase):
        FindDb.read(database(content, "passwd"))


@pytest.mark.parametrize(("name", "count", "format"), [("gfx942130", 9600, "2.0"), ("gfx906_60", 120454, "1.0")])
def test_shipped_databases_are_read_whole(shipped: Path, name: str, count: int, format: str) -> None:
    database = FindDb.read(shipped / f"{name}.HIP.fdb.txt.bz2")
    assert (len(database), database.format, database.dirty) == (count, format, [])
    assert all(solution.algorithm for key in list(database)[:500] for solution in database[key])
