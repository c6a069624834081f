"""The page on metrics names every metric of a server with its labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import Counter

from serving.metrics.metrics import Metrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def _described() -> dict[str, tuple[str, tuple[str, ...]]]:
    found = {}
    for row in re.findall(r"^\| (`preheat_.+?) \| (\w+) \| (.*?) ?\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        names, kind, labels = row
        labels = tuple(re.findall(r"\w+", re.sub(r"\(.*?\)", "", labels)))
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), (kind, labels))
    return found


def test_every_metric_is_described_with_its_labels() -> None:
    metrics = [metric for metric in vars(Metrics()).values() if hasattr(metric, "_labelnames")]
    made = {
        metric._name + ("_total" if isinstance(metric, Counter) else ""): (metric._type, tuple(metric._labelnames))
        for metric in metrics
    }
    assert "preheat_graph_bytes" in made
    assert _described() == made
