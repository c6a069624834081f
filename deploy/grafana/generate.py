"""Writes the dashboards to dashboards/*.json, or into the folder that is given: python deploy/grafana/generate.py"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from panels import HALF, THIRD, board, number, rows, series

PLACE = 'cluster=~"$cluster", namespace=~"$namespace"'
WHERE = f'{PLACE}, model=~"$model"'
VARIABLES = [
    ("cluster", "label_values(preheat_ready, cluster)"),
    ("namespace", 'label_values(preheat_ready{cluster=~"$cluster"}, namespace)'),
]
MODEL = ("model", f"label_values(preheat_shapes{{{PLACE}}}, model)")
RUNBOOKS = "docs/runbooks/"


def serving() -> Dashboard:
    """What clients feel, and whether they meet warm shapes."""
    p = {name: f"model:preheat_request_seconds:{name}_5m{{{WHERE}}}" for name in ("p50", "p95", "p99", "p999")}
    return (
        board(
            "preheat-serving",
            "Preheat: serving",
            "Latency, hit rate and load, by model and shape.",
            [*VARIABLES, MODEL],
        )
        .with_panel(
            number(
                "Slowest P99",
                "s",
                f"max({p['p99']})",
                ("green", None),
                ("red", 1.0),
                what=f"{RUNBOOKS}latency-budget.md",
            )
        )
        .with_panel(
            number(
                "Hit rate",
                "percentunit",
                f"min(model:preheat_hit:ratio_5m{{{WHERE}}})",
                ("red", None),
                ("green", 0.99),
                what=f"Of the model that has the lowest. {RUNBOOKS}hit-rate.md",
            )
        )
        .with_panel(number("Requests", "reqps", f"sum(rate(preheat_requests_total{{{WHERE}}}[5m]))"))
        .with_panel(
            number(
                "Errors",
                "percentunit",
                f"max(model:preheat_errors:ratio_5m{{{WHERE}}})",
                ("green", None),
                ("red", 0.01),
                what=f"{RUNBOOKS}errors.md",
            )
        )
        .with_row(Row("Latency"))
        .with_panel(
            series("P99 by model", "s", [(p["p99"], "{{model}}")], limit=1.0, what=f"{RUNBOOKS}latency-budget.md")
        )
        .with_panel(
            series(
                "P99 by shape",
                "s",
                [(f"topk(10, model_shape:preheat_shape_seconds:p99_5m{{{WHERE}}})", "{{model}} {{shape}}")],
                what="The ten slowest planned shapes, and cold.",
            )
        )
        .with_panel(
            series("P50 to P99.9", "s", [(query, f"{{{{model}}}} {name}") for name, query in p.items()], width=HALF)
        )
        .with_panel(
            series(
                "Time in each stage",
                "s",
                [
                    (
                        f"sum by (model, stage) (rate(preheat_stage_seconds_sum{{{WHERE}}}[5m]))"
                        f" / sum by (model, stage) (rate(preheat_stage_seconds_count{{{WHERE}}}[5m]))",
                        "{{model}} {{stage}}",
                    )
                ],
                stacked=True,
                what="Mean seconds of a request.",
            )
        )
        .with_row(Row("Warm, padded, cold"))
        .with_panel(
            series(
                "Requests by outcome",
                "reqps",
                [(f"sum by (outcome) (rate(preheat_shape_lookups_total{{{WHERE}}}[5m]))", "{{outcome}}")],
                stacked=True,
                what=f"{RUNBOOKS}hit-rate.md",
            )
        )
        .with_panel(
            series(
                "Hit rate", "percentunit", [(f"model:preheat_hit:ratio_5m{{{WHERE}}}", "{{model}}")], top=1, limit=0.99
            )
        )
        .with_panel(
            series(
                "Padding",
                "percentunit",
                [(f"model:preheat_padding:ratio_5m{{{WHERE}}}", "{{model}}")],
                what="The share of the elements run that nobody asked for.",
                top=1,
            )
        )
        .with_panel(
            series(
                "Cold seconds in an hour",
                "s",
                [(f"model:preheat_cold_seconds:increase_1h{{{WHERE}}}", "{{model}}")],
                what="First-call time that requests paid for.",
            )
        )
        .with_row(Row("Load"))
        .with_panel(
            series(
                "Waiting",
                "short",
                [(f"sum by (model) (preheat_queue_depth{{{WHERE}}})", "{{model}}")],
                width=THIRD,
                what=f"{RUNBOOKS}queue-full.md",
            )
        )
        .with_panel(
            series(
                "Rows in a batch",
                "short",
                [
                    (
                        f"sum by (model) (rate(preheat_batch_size_sum{{{WHERE}}}[5m]))"
                        f" / sum by (model) (rate(preheat_batch_size_count{{{WHERE}}}[5m]))",
                        "{{model}}",
                    )
                ],
                width=THIRD,
            )
        )
        .with_panel(
            series(
                "Answers by code, and refusals",
                "reqps",
                [
                    (f"sum by (code) (rate(preheat_requests_total{{{WHERE}}}[5m]))", "{{code}}"),
                    (f"sum by (reason) (rate(preheat_rejected_total{{{WHERE}}}[5m]))", "refused: {{reason}}"),
                ],
                width=THIRD,
            )
        )
    )


def warm_up() -> Dashboard:
    """How servers get ready, and whether they stay warm."""
    return (
        board("preheat-warm-up", "Preheat: warm-up", "Replays, shapes and stores.", [*VARIABLES, MODEL])
        .with_panel(
            number(
                "Warm shapes",
                "percentunit",
                f'sum(preheat_shapes{{{WHERE}, state="warm"}}) / sum(preheat_shapes{{{WHERE}, state="planned"}})',
                ("red", None),
                ("orange", 0.9),
                ("green", 1.0),
            )
        )
        .with_panel(
            number(
                "Longest replay left",
                "s",
                f"max(preheat_warmup_remaining_seconds{{{WHERE}}})",
                what=f"{RUNBOOKS}warm-up-stuck.md",
            )
        )
        .with_panel(number("Longest replay", "s", f"max(preheat_warmup_seconds{{{WHERE}}})"))
        .with_panel(
            number(
                "New entries after ready, 1 h",
                "short",
                f"sum(increase(preheat_store_new_entries_total{{{PLACE}}}[1h]))",
                ("green", None),
                ("red", 1.0),
                what=f"{RUNBOOKS}store-growth.md",
            )
        )
        .with_row(Row("Getting ready"))
        .with_panel(
            series(
                "Replay left",
                "s",
                [(f"preheat_warmup_remaining_seconds{{{WHERE}}}", "{{instance}} {{model}}")],
                what=f"By the times of the proof. {RUNBOOKS}warm-up-stuck.md",
            )
        )
        .with_panel(
            series("Time spent", "s", [(f"preheat_warmup_seconds{{{WHERE}}}", "{{instance}} {{model}} {{phase}}")])
        )
        .with_panel(
            series(
                "Shapes by state",
                "short",
                [(f"max by (model, state) (preheat_shapes{{{WHERE}}})", "{{model}} {{state}}")],
                what="planned: what may come; proven: of these, in the bundle; warm: of these, replayed.",
            )
        )
        .with_panel(
            series(
                "Ready", "short", [(f"preheat_ready{{{PLACE}}}", "{{instance}}")], top=1, what=f"{RUNBOOKS}not-ready.md"
            )
        )
        .with_row(Row("Staying warm"))
        .with_panel(
            series(
                "P99, warm and cold shapes",
                "s",
                [
                    (
                        f'max by (model) (model_shape:preheat_shape_seconds:p99_5m{{{WHERE}, shape!="cold"}})',
                        "{{model}} warm",
                    ),
                    (
                        f'max by (model) (model_shape:preheat_shape_seconds:p99_5m{{{WHERE}, shape="cold"}})',
                        "{{model}} cold",
                    ),
                ],
            )
        )
        .with_panel(
            series("Entries in stores", "short", [(f"max by (store) (preheat_store_entries{{{PLACE}}})", "{{store}}")])
        )
        .with_panel(
            series(
                "New entries after ready",
                "short",
                [
                    (
                        f"sum by (instance, store) (increase(preheat_store_new_entries_total{{{PLACE}}}[15m]))",
                        "{{instance}} {{store}}",
                    )
                ],
                what=f"Each is a miss that somebody paid for. {RUNBOOKS}store-growth.md",
            )
        )
        .with_panel(
            series(
                "Device memory of captured graphs",
                "bytes",
                [(f"sum by (model) (preheat_graph_bytes{{{WHERE}}})", "{{model}}")],
            )
        )
    )


def fleet() -> Dashboard:
    """Replicas, bundles and, by AMD's exporter, the GPUs under them."""
    ready = f"preheat_ready{{{PLACE}}}"
    return (
        board("preheat-fleet", "Preheat: fleet", "Replicas, bundles and GPUs.", VARIABLES)
        .with_panel(number("Ready", "short", f"sum({ready})", width=THIRD))
        .with_panel(
            number(
                "Not ready",
                "short",
                f"count({ready}) - sum({ready})",
                ("green", None),
                ("red", 1.0),
                width=THIRD,
                what=f"{RUNBOOKS}not-ready.md",
            )
        )
        .with_panel(
            number(
                "Bundles",
                "short",
                f"count(count by (bundle) (preheat_bundle_info{{{PLACE}}}))",
                width=THIRD,
                what=f"{RUNBOOKS}bundle-mismatch.md",
            )
        )
        .with_panel(
            rows(
                "Bundles served",
                "short",
                f"count by (namespace, arch, cu, versions, bundle) (preheat_bundle_info{{{PLACE}}})",
                what=f"Replicas of each. {RUNBOOKS}bundle-mismatch.md",
            )
        )
        .with_panel(
            series(
                "Ready replicas",
                "short",
                [
                    (f"sum by (namespace) ({ready})", "ready {{namespace}}"),
                    (f"count by (namespace) ({ready})", "all {{namespace}}"),
                ],
            )
        )
        .with_panel(
            series(
                "Requests by replica",
                "reqps",
                [(f"sum by (instance) (rate(preheat_requests_total{{{PLACE}}}[5m]))", "{{instance}}")],
            )
        )
        .with_row(Row("GPUs, by AMD's device metrics exporter"))
        .with_panel(series("Busy", "percent", [("gpu_gfx_activity", "{{hostname}} {{gpu_id}}")], top=100))
        .with_panel(
            series("Memory", "percentunit", [("gpu_used_vram / gpu_total_vram", "{{hostname}} {{gpu_id}}")], top=1)
        )
        .with_panel(series("Power", "watt", [("gpu_package_power", "{{hostname}} {{gpu_id}}")], width=THIRD))
        .with_panel(
            series(
                "Junction temperature",
                "celsius",
                [("gpu_junction_temperature", "{{hostname}} {{gpu_id}}")],
                width=THIRD,
            )
        )
        .with_panel(series("Health", "short", [("gpu_health", "{{hostname}} {{gpu_id}}")], width=THIRD, top=1))
    )


DASHBOARDS = {"serving": serving, "warm-up": warm_up, "fleet": fleet}


def render(name: str) -> str:
    """The JSON of a dashboard."""
    document = json.loads(JSONEncoder(sort_keys=True, indent=2).encode(DASHBOARDS[name]().build()))
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "dashboards"
    for name in DASHBOARDS:
        (folder / f"{name}.json").write_text(render(name), encoding="utf-8")
