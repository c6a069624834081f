"""The arithmetic of the scaling run, with figures made up for it: how it scales is for the run itself to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scaling import HEAD, Look, Point, bottleneck, checks, counts, efficiency, mean_bytes, plot, rows, steady

ONE = Point(
    count=1,
    per_second=1000.0,
    p50=0.004,
    p99=0.010,
    busy=(0.99,),
    host=0.1,
    server_cores=1.2,
    client_cores=1.6,
    client=0.4,
    resident=3_000_000_000,
    accelerator_memory=5_000_000_000,
    wire=1e9,
    sweep=600.0,
)
EIGHT = replace(ONE, count=8, per_second=7600.0, p99=0.012, busy=(0.95,) * 8, host=0.8, wire=8e9, sweep=90.0)
LOOPBACK = 40e9


def test_efficiency_is_the_part_of_linear() -> None:
    assert efficiency(ONE, ONE) == 1.0
    assert efficiency(ONE, EIGHT) == pytest.approx(0.95)


def test_all_goals_at_eight() -> None:
    found = checks([ONE, EIGHT], LOOPBACK)
    assert [check.holds for check in found] == [True] * 3
    assert "0.95" in found[0].found and "1.20" in found[1].found and "0.15" in found[2].found
    assert "0.17" in found[2].wanted, "a sixth"


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"per_second": 0.92 * 8000}, 0),
        ({"p99": 0.0131}, 1),
        ({"sweep": 101.0}, 2),
    ],
)
def test_each_goal_can_be_missed(change: dict[str, float], missed: int) -> None:
    found = checks([ONE, replace(EIGHT, **change)], LOOPBACK)
    assert [number for number, check in enumerate(found) if not check.holds] == [missed]


def test_a_sweep_divided_by_fewer_may_take_its_share() -> None:
    assert [check.holds for check in checks([ONE, replace(EIGHT, count=2, per_second=2000.0, sweep=399.0)], 4e10)] == [
        True
    ] * 3
    assert not checks([ONE, replace(EIGHT, count=2, per_second=2000.0, sweep=401.0)], 4e10)[2].holds


def test_one_accelerator_alone_has_nothing_to_reach() -> None:
    assert checks([ONE], LOOPBACK) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, "the accelerators: the least busy one 95%"),
        ({"busy": (0.99,) * 7 + (0.5,), "host": 0.97}, "the host's processor: 97%"),
        ({"busy": (0.5,) * 8, "client": 0.98}, "the clients: each uses 98%"),
        ({"busy": (0.5,) * 8, "wire": 39e9}, "the loopback: 39.0 GB/s of the 40.0"),
        ({"busy": (0.5,) * 8}, "none of these: at most 80%"),
        ({"busy": ()}, "none of these: at most 80%"),
    ],
)
def test_what_stands_in_the_way_is_named_with_its_measurement(change: dict, named: str) -> None:
    assert bottleneck(replace(EIGHT, **change), LOOPBACK).startswith(named)


def test_a_row_for_each_count() -> None:
    first, last = rows([ONE, replace(EIGHT, busy=(), sweep=None, accelerator_memory=0)])
    assert len(first) == len(last) == len(HEAD)
    assert first[:5] == ["1", "1,000", "1.00", "4.00 ms", "10.00 ms"] and first[-1] == "600 s"
    assert last[2] == "0.95" and last[5] == last[-2] == last[-1] == "-"


def test_only_the_time_under_load_counts() -> None:
    """Ten seconds in which clients start, ten in which the server has three cores and the host six, and two after."""
    looks = [Look(0, 0.0, 0.0), Look(10, 20.0, 1.0), Look(15, 50.0, 16.0), Look(20, 80.0, 31.0), Look(22, 81.0, 31.5)]
    assert steady(looks) == (6.0, 3.0)
    assert steady(looks[:1]) == steady([]) == (0.0, 0.0)


def test_counts_double_up_to_what_is_there() -> None:
    assert [counts(most) for most in (1, 2, 3, 6, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_bytes_are_weighted() -> None:
    assert mean_bytes([100, 400], [2, 1]) == 200


def test_the_plot_is_written(tmp_path: Path) -> None:
    plot([ONE, EIGHT], tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
