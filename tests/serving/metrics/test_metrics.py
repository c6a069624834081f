from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.lanes.warmset import Outcome
from serving.metrics.histogram import BulkHistogram, log_buckets
from serving.metrics.metrics import Metrics
from serving.metrics.recorder import Recorder, Sample

STAGES = (0.1, 0.0, 0.2, 0.0, 0.3, 0.0, 0.1)


def value(text: bytes, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no sample {name} {labels}")


def test_many_observations_count_like_single_ones() -> None:
    values = [0.0001, 0.1, 0.1000001, 0.5, 1.0, 7.0, 1e9]
    one, many = CollectorRegistry(), CollectorRegistry()
    single = Histogram("h", "h", buckets=(0.1, 1, 10), registry=one)
    bulk = BulkHistogram("h", "h", buckets=(0.1, 1, 10), registry=many)
    for observed in values:
        single.observe(observed)
    bulk.observe_many(values)

    def samples(registry: CollectorRegistry) -> list[object]:
        return [s for family in registry.collect() for s in family.samples if not s.name.endswith("_created")]

    assert samples(one) == samples(many)


def test_bulk_observation_needs_the_labels() -> None:
    histogram = BulkHistogram("h", "h", ("model",), registry=None)
    with pytest.raises(ValueError, match="label"):
        histogram.observe_many([1.0])


def test_buckets_are_evenly_spaced_in_log_scale() -> None:
    buckets = log_buckets(0.0005, 60, 30)
    assert buckets[0] == 0.0005
    assert buckets[-1] == 60
    ratios = [high / low for low, high in zip(buckets, buckets[1:], strict=False)]
    assert max(ratios) / min(ratios) < 1.02


def test_what_was_recorded_is_counted_once() -> None:
    metrics = Metrics()
    recorder = Recorder(metrics, "m", "1")
    recorder.add(Sample("oip", 200, 0.7, Outcome.WARM, "x=1x4:fp32", STAGES, 4, 0))
    recorder.add(Sample("oip", 200, 0.7, Outcome.PADDED, "x=1x8:fp32", STAGES, 5, 3))
    recorder.add(Sample("torchserve", 400, 0.01, None, "", None, 0, 0))
    recorder.lookup(Outcome.WARM)
    recorder.lookup(Outcome.PADDED)
    recorder.batch(2)
    recorder.rejected("queue_full")
    for _ in range(2):
        recorder.flush()
    text = asyncio.run(metrics.exposition())
    assert value(text, "preheat_requests_total", code="200", protocol="oip") == 2
    assert value(text, "preheat_requests_total", code="400", protocol="torchserve", version="1") == 1
    assert value(text, "preheat_shape_lookups_total", outcome="warm") == 1
    assert value(text, "preheat_shape_lookups_total", outcome="padded") == 1
    assert value(text, "preheat_shape_lookups_total", outcome="cold") == 0
    assert value(text, "preheat_elements_total", kind="useful") == 9
    assert value(text, "preheat_elements_total", kind="padding") == 3
    assert value(text, "preheat_batch_size_sum", model="m") == 2
    assert value(text, "preheat_stage_seconds_sum", stage="execute") == pytest.approx(0.6)
    assert value(text, "preheat_request_seconds_count", model="m") == 3
    assert value(text, "preheat_shape_seconds_count", shape="x=1x8:fp32") == 1
    assert value(text, "preheat_rejected_total", reason="queue_full") == 1


def test_any_process_answers_a_scrape_for_all(tmp_path: Path) -> None:
    program = """
import asyncio, os, signal
from serving.metrics.metrics import Metrics

async def main():
    metrics = Metrics()
    metrics.requests.labels("m", "1", "oip", "200").inc(3)
    metrics.request_seconds.labels("m", "1").observe_many([0.1, 0.2])
    metrics.queue_depth.labels("m").set(2)
    await metrics.exposition()
    os.kill(metrics._together._process.pid, signal.SIGKILL)  # the next scrape begins another
    print((await metrics.exposition()).decode())
    await metrics.close()

asyncio.run(main())
"""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for _ in range(2)
    ]
    text = outputs[-1].encode()
    assert value(text, "preheat_requests_total", code="200") == 6
    assert value(text, "preheat_request_seconds_count", model="m") == 4


def test_a_registry_without_requests_is_valid_exposition() -> None:
    assert list(text_string_to_metric_families(asyncio.run(Metrics().exposition()).decode()))
    assert generate_latest(CollectorRegistry()) == b""


def test_text_in_pieces_is_the_text() -> None:
    """Prometheus takes a family whose lines are apart, or whose type is said twice, for a fault."""
    metrics = Metrics()
    for number in range(50):
        metrics.shape_seconds.labels("m", f"x=1x{number}:fp32").observe_many([0.1, number])
    pieces = list(metrics.pieces())
    assert max(piece.count(b"\n") for piece in pieces) < 50
    text = b"".join(pieces)
    whole = list(dict.fromkeys(generate_latest(metrics._registry).splitlines()))  # heads come with each piece there
    assert text.splitlines() == whole
    families = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in families}) == len(families)
    assert value(text, "preheat_shape_seconds_count", shape="x=1x49:fp32") == 2


def test_calls_that_overlap_count_everything_once_and_none_ends_before_its_own() -> None:
    metrics = Metrics()
    recorder = Recorder(metrics, "m", "1")

    def add(count: int) -> None:
        for number in range(count):
            recorder.add(Sample("oip", 200, 0.1, Outcome.WARM, f"x=1x{number % 40}:fp32", STAGES, 1, 0))

    def counted() -> float:
        text = b"".join(metrics.pieces())
        return sum(
            sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
            if sample.name == "preheat_shape_seconds_count"
        )

    add(600)
    first = recorder.steps()
    next(first)
    add(300)
    second, third = recorder.steps(), recorder.steps()
    for _ in range(3):
        for each in (second, third, first):
            next(each)
    assert len(list(third)) > 3  # more than it had to do for itself, since two others were not through
    assert counted() == 900
    assert list(second) == list(first) == []
    add(5)
    begun = recorder.steps()
    next(begun)
    recorder.flush()
    assert counted() == 905
    assert list(begun) == [] and counted() == 905
