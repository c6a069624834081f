from __future__ import annotations

import pytest

from serving.bench.exposition import ExpositionError, Lookups, lookups

TEXT = """
# TYPE preheat_shape_lookups_total counter
preheat_shape_lookups_total{model="a",outcome="warm"} 6.0
preheat_shape_lookups_total{model="a",outcome="padded"} 3.0
preheat_shape_lookups_total{model="a",outcome="cold"} 1.0
preheat_shape_lookups_total{model="b",outcome="cold"} 7.0
# TYPE preheat_store_new_entries_total counter
preheat_store_new_entries_total{store="inductor"} 2.0
preheat_store_new_entries_total{store="miopen"} 3.0
"""


def test_lookups_of_one_model_and_entries_of_all_stores() -> None:
    found = lookups(TEXT, "a")
    assert found == Lookups({"warm": 6, "padded": 3, "cold": 1}, 5)
    assert found is not None and found.hit_rate == pytest.approx(0.9)


def test_a_model_without_requests_has_no_hit_rate() -> None:
    found = lookups(TEXT, "c")
    assert found is not None and found.hit_rate is None


def test_another_servers_metrics_are_none_of_ours() -> None:
    assert lookups("# TYPE http_requests_total counter\nhttp_requests_total 4\n", "a") is None


def test_what_a_run_added() -> None:
    before = Lookups({"warm": 2, "cold": 1}, 4)
    assert Lookups({"warm": 5, "padded": 1, "cold": 1}, 4).since(before) == Lookups({"warm": 3, "padded": 1, "cold": 0})


@pytest.mark.parametrize("after", [Lookups({"warm": 1}, 0), Lookups({"warm": 2}, -1)])
def test_counters_that_fall_are_an_error(after: Lookups) -> None:
    with pytest.raises(ExpositionError, match="started again"):
        after.since(Lookups({"warm": 2}, 0))


def test_metrics_that_are_not_metrics() -> None:
    with pytest.raises(ExpositionError, match="cannot be read"):
        lookups("preheat_shape_lookups_total{model= 1 2 3", "a")
