from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.miopen.finddb import FindDb
from warmup.miopen.merge import MergeRefused, join_find, join_perf, one_target
from warmup.miopen.names import DbName

from .conftest import DEPTH, FORWARD, GEMM, LEGACY, NAIVE, SOUND, WINOGRAD


def _join(*texts: str):
    return join_find([FindDb(text.encode()) for text in texts], [f"db{number}" for number in range(len(texts))])


def _merged(*texts: str) -> FindDb:
    return FindDb(b"".join(_join(*texts).lines))


def test_records_of_one_source_stay_as_they_are() -> None:
    joined = _join(f"{FORWARD}={GEMM};{WINOGRAD}\n", LEGACY.replace(FORWARD, DEPTH))
    assert b"".join(joined.lines).decode() == f"{FORWARD}={GEMM};{WINOGRAD}\n" + LEGACY.replace(FORWARD, DEPTH)
    assert (joined.present, joined.added, joined.improved, joined.conflicts) == (1, 1, 0, ())


def test_a_merge_with_itself_changes_nothing() -> None:
    joined = _join(SOUND, SOUND)
    assert b"".join(joined.lines).decode() == SOUND
    assert (joined.added, joined.improved, joined.conflicts) == (0, 0, ())


def test_every_solver_has_its_fastest_time() -> None:
    slow = f"{FORWARD}={GEMM};ConvAsm3x3U:0.5,0,miopenConvolutionFwdAlgoDirect\n"
    fast = f"{FORWARD}=GemmFwdRest:5.68561e-05,3612672,miopenConvolutionFwdAlgoGEMM;{NAIVE}\n"
    joined = _join(slow, fast)
    (line,) = joined.lines
    assert line.decode() == (
        f"{FORWARD}=GemmFwdRest:5.68561e-05,3612672,miopenConvolutionFwdAlgoGEMM;"
        f"ConvAsm3x3U:0.5,0,miopenConvolutionFwdAlgoDirect;{NAIVE}\n"
    )
    assert joined.improved == 1
    (conflict,) = joined.conflicts
    assert conflict.key == FORWARD
    assert conflict.what == ("db0 chose ConvAsm3x3U (0.5 ms), db1 chose GemmFwdRest (5.68561e-05 ms); kept GemmFwdRest")


def test_other_workspaces_are_a_conflict() -> None:
    other = "GemmFwdRest:0.7,1,miopenConvolutionFwdAlgoGEMM"
    joined = _join(f"{FORWARD}={GEMM}\n", f"{FORWARD}={other}\n")
    assert joined.lines == (f"{FORWARD}={other}\n".encode(),)
    (conflict,) = joined.conflicts
    assert "needs 3612672 bytes of workspace by db0, 1 by db1" in conflict.what


def test_a_time_of_zero_does_not_beat_a_measured_one() -> None:
    zero = "GemmFwdRest:0.0,0,miopenConvolutionFwdAlgoGEMM"
    merged = _merged(f"{FORWARD}={zero};{NAIVE}\n", f"{FORWARD}={GEMM}\n")
    assert {solution.solver: solution.time_ms for solution in merged[FORWARD]} == {
        "GemmFwdRest": 0.811666,
        "ConvDirectNaiveConvFwd": 2.14738,
    }


def test_both_formats_join_into_the_new_one() -> None:
    merged = _merged(LEGACY, f"{FORWARD}={NAIVE}\n")
    assert merged.format == "2.0"
    assert [solution.solver for solution in merged[FORWARD]] == [
        "ConvBinWinogradRxSf2x3g1",
        "GemmFwdRest",
        "ConvDirectNaiveConvFwd",
    ]


_SOLVERS = ("GemmFwdRest", "ConvDirectNaiveConvFwd", "ConvBinWinogradRxSf2x3g1", "ConvOclDirectFwd")
_RECORDS = st.dictionaries(
    st.sampled_from(_SOLVERS), st.floats(0.001, 100).map(lambda time: f"{time:g}"), min_size=1, max_size=4
)
_DATABASES = st.dictionaries(st.sampled_from([FORWARD, FORWARD + "_g2", DEPTH]), _RECORDS, max_size=3)


def _text(database: dict[str, dict[str, str]]) -> str:
    return "".join(
        f"{key}={';'.join(f'{s}:{t},0,miopenConvolutionFwdAlgoGEMM' for s, t in record.items())}\n"
        for key, record in database.items()
    )


@given(st.lists(_DATABASES, min_size=1, max_size=4))
def test_a_merge_is_the_minimum_of_all(databases: list[dict[str, dict[str, str]]]) -> None:
    merged = _merged(*map(_text, databases))
    expected: dict[str, dict[str, float]] = {}
    for database in databases:
        for key, record in database.items():
            for solver, time in record.items():
                best = expected.setdefault(key, {})
                best[solver] = min(float(time), best.get(solver, float("inf")))
    assert {key: {s.solver: s.time_ms for s in found} for key, found in merged.items()} == expected


def test_parameters_are_joined_by_solver() -> None:
    first, second = {"k": {"A": "1", "B": "2"}}, {"k": {"A": "9", "C": "3"}, "l": {"A": "4"}}
    joined, conflicts = join_perf([first, second], ["one", "two"])
    assert joined == {"k": {"A": "1", "B": "2", "C": "3"}, "l": {"A": "4"}}
    (conflict,) = conflicts
    assert (conflict.key, conflict.what) == ("k", "A: one and two have other parameters; kept those of the first")


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("gfx942130.HIP.3_4_0_.ufdb.txt", "gfx90a68.HIP.3_4_0_.ufdb.txt"), "different device"),
        (("gfx942130.HIP.3_4_0_.ufdb.txt", "gfx942_38.HIP.3_4_0_.ufdb.txt"), "different device"),
        (("gfx942130.HIP.3_4_0_.ufdb.txt", "gfx942130.HIP.3_3_0_.ufdb.txt"), "different version"),
        (("gfx942130.HIP.3_4_0_a.ufdb.txt", "gfx942130.HIP.3_4_0_b.ufdb.txt"), "different version"),
        (("gfx942130.HIP.3_4_0_.ufdb.txt", "gfx942130.HIP.3_4_0_.udb.txt"), "different kind"),
    ],
)
def test_foreign_databases_are_refused_by_name(names: tuple[str, str], what: str) -> None:
    with pytest.raises(MergeRefused, match=f"{what}.*{names[0]}, {names[1]}"):
        one_target([DbName.parse(name) for name in names])


def test_system_and_user_databases_of_one_device_fit() -> None:
    one_target([DbName.parse("gfx942130.HIP.fdb.txt"), None, DbName.parse("gfx942130.HIP.3_4_0_.ufdb.txt")])
