from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving.bench.latency import Summary, summarize


def test_percentiles_are_nearest_ranks() -> None:
    summary = summarize([k / 1000 for k in range(1000, 0, -1)])
    assert summary is not None
    assert (summary.p50, summary.p95, summary.p99, summary.p999, summary.max) == (0.5, 0.95, 0.99, 0.999, 1.0)
    assert summary.count == 1000
    assert abs(summary.mean - 0.5005) < 1e-12


def test_few_times_have_their_largest_as_tail() -> None:
    summary = summarize([3.0, 1.0, 2.0])
    assert summary is not None
    assert (summary.p50, summary.p99, summary.p999) == (2.0, 3.0, 3.0)


def test_nothing_measured_has_no_summary() -> None:
    assert summarize([]) is None


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=50))
def test_every_percentile_was_measured_and_json_keeps_all(times: list[float]) -> None:
    summary = summarize(times)
    assert summary is not None
    tail = [summary.p50, summary.p95, summary.p99, summary.p999, summary.max]
    assert tail == sorted(tail)
    assert set(tail) <= set(times)
    assert Summary.from_json(summary.to_json()) == summary
