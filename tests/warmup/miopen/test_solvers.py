from __future__ import annotations

from pathlib import Path

import pytest

from warmup.miopen.finddb import FindDb
from warmup.miopen.solvers import DYNAMIC, NAIVE, is_dynamic, is_known, is_naive


@pytest.mark.parametrize(
    ("name", "known", "dynamic", "naive"),
    [
        ("ConvDirectNaiveConvFwd", True, True, True),
        ("GemmFwd1x1_0_1", True, True, False),
        ("ConvMPBidirectWinograd<5-3>", True, True, False),
        ("TransposedConvMPBidirectWinograd<5-3>", True, True, False),
        ("ConvOclBwdWrW2<16>", True, False, False),
        ("ConvAsm3x3U", True, False, False),
        ("ConvFromTheFuture", False, False, False),
        ("", False, False, False),
    ],
)
def test_what_is_known_of_a_solver(name: str, known: bool, dynamic: bool, naive: bool) -> None:
    assert (is_known(name), is_dynamic(name), is_naive(name)) == (known, dynamic, naive)


def test_the_naive_solvers_are_dynamic() -> None:
    assert NAIVE < DYNAMIC


@pytest.mark.parametrize("name", ["gfx942130", "gfx906_60"])
def test_every_solver_of_a_shipped_database_is_known(shipped: Path, name: str) -> None:
    assert [solver for solver in FindDb.read(shipped / f"{name}.HIP.fdb.txt.bz2").solvers if not is_known(solver)] == []
