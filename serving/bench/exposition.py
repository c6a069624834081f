"""What the server says in ``/metrics`` about the requests of a run: how each found its shape, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

OUTCOMES: tuple[str, ...] = ("warm", "padded", "cold")


class ExpositionError(Exception):
    """Metrics that cannot be read, or that went backwards."""


@dataclass(frozen=True)
class Lookups:
    """Shape lookups of one model by outcome, and the entries that all stores gained since the server was ready."""

    outcomes: Mapping[str, int] = field(default_factory=dict)
    new_entries: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The share of lookups that ended in a shape that had been warmed, padded to it or not; None without any."""
        total = sum(self.outcomes.values())
        return (total - self.outcomes.get("cold", 0)) / total if total else None

    def since(self, earlier: Lookups) -> Lookups:
        """What was added after ``earlier``; raises ExpositionError where a counter fell."""
        outcomes = {name: count - earlier.outcomes.get(name, 0) for name, count in self.outcomes.items()}
        entries = self.new_entries - earlier.new_entries
        if entries < 0 or any(count < 0 for count in outcomes.values()):
            raise ExpositionError("the server's counters fell during the run: it was started again")
        return Lookups(outcomes, entries)


def lookups(text: str, model: str) -> Lookups | None:
    """Reads Prometheus text; None where it has no metric of ours, as another server's has none."""
    ours = False
    outcomes = dict.fromkeys(OUTCOMES, 0)
    entries = 0
    try:
        for family in text_string_to_metric_families(text):
            ours = ours or family.name.startswith("preheat_")
            for sample in family.samples:
                if sample.name == "preheat_shape_lookups_total" and sample.labels.get("model") == model:
                    outcome = sample.labels["outcome"]
                    outcomes[outcome] = outcomes.get(outcome, 0) + int(sample.value)
                elif sample.name == "preheat_store_new_entries_total":
                    entries += int(sample.value)
    except (ValueError, KeyError) as error:
        raise ExpositionError(f"the server's metrics cannot be read: {error}") from error
    return Lookups(outcomes, entries) if ours else None
