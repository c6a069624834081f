from __future__ import annotations

import pytest

from warmup.miopen.diff import diff_entries, diff_find
from warmup.miopen.finddb import FindDb

from .conftest import DEPTH, FORWARD, GEMM, NAIVE, SOUND, WINOGRAD


def test_equal_databases_do_not_differ() -> None:
    database = FindDb(SOUND.encode())
    found = diff_find(database, database)
    assert not found.differs
    assert (found.same, found.drift_ms, found.lost_ms, found.won_ms) == (4, 0, 0, 0)


def test_choices_are_compared_with_what_they_cost() -> None:
    old = FindDb(f"{FORWARD}={GEMM};{WINOGRAD}\n{FORWARD}_g2={NAIVE}\n{DEPTH}={GEMM}\n".encode())
    new = FindDb(f"{FORWARD}={GEMM}\n{FORWARD}_g2={NAIVE};{GEMM}\n{FORWARD}_g4={GEMM}\n".encode())
    found = diff_find(old, new)
    assert (found.only_old, found.only_new) == ((DEPTH,), (f"{FORWARD}_g4",))
    worse, better = found.changed
    assert (worse.key, worse.old, worse.new, worse.kept_ms) == (
        FORWARD,
        "ConvBinWinogradRxSf2x3g1",
        "GemmFwdRest",
        None,
    )
    assert worse.lost_ms == pytest.approx(0.811666 - 0.0568561)
    assert (better.key, better.kept_ms) == (f"{FORWARD}_g2", 2.14738)
    assert found.won_ms == pytest.approx(2.14738 - 0.811666)
    assert found.lost_ms == worse.lost_ms
    assert found.differs


def test_the_same_choice_may_take_longer() -> None:
    old = FindDb(f"{FORWARD}={GEMM}\n".encode())
    new = FindDb(f"{FORWARD}={GEMM.replace('0.811666', '1.0')}\n".encode())
    found = diff_find(old, new)
    assert (found.same, found.differs) == (1, False)
    assert found.drift_ms == pytest.approx(0.188334)


def test_entries_are_compared_by_equality() -> None:
    found = diff_entries({"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 4, "d": 5})
    assert (found.only_old, found.only_new, found.changed, found.same) == (("a",), ("d",), ("c",), 1)
    assert found.differs
    assert not diff_entries({"a": 1}, {"a": 1}).differs
