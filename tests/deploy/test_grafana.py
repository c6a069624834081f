"""The dashboards: what is committed is what the script makes, and it asks for what exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.metrics.metrics import Metrics

pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk makes the dashboards")

REPOSITORY = Path(__file__).resolve().parents[2]
GRAFANA = REPOSITORY / "deploy/grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
# Of AMD's device metrics exporter, as its documentation lists them.
AMD = {
    "gpu_gfx_activity",
    "gpu_used_vram",
    "gpu_total_vram",
    "gpu_package_power",
    "gpu_junction_temperature",
    "gpu_health",
}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, also those in rows, without the rows."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def expressions(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    asked += [annotation["expr"] for annotation in dashboard["annotations"]["list"] if "expr" in annotation]
    return asked + [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]


def test_what_is_committed_is_what_the_script_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(GRAFANA / "generate.py"), str(tmp_path)], check=True)
    assert {file.name: file.read_text() for file in FILES} == {
        file.name: file.read_text() for file in tmp_path.iterdir()
    }, "run deploy/grafana/generate.py"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_metric_exists(file: Path) -> None:
    recording = yaml.safe_load((REPOSITORY / "deploy/prometheus/recording.rules.yaml").read_text())
    recorded = {rule["record"] for group in recording["groups"] for rule in group["rules"]}
    served = {family.name for family in Metrics()._registry.collect()}
    asked = expressions(json.loads(file.read_text()))
    names = {name for text in asked for name in re.findall(r"\b(?:\w+:)?(?:preheat|gpu)_\w+(?::\w+)?", text)}
    names -= {"gpu_id"}
    assert len(names) > 3
    unknown = {
        name
        for name in names - recorded - AMD
        if name not in served and re.sub(r"_(bucket|count|sum|total)$", "", name) not in served
    }
    assert unknown == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_panel_has_a_query_a_unit_and_a_place_of_its_own(file: Path) -> None:
    dashboard = json.loads(file.read_text())
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    for panel in panels(dashboard):
        assert panel["targets"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for page in re.findall(r"docs/runbooks/\S+\.md", panel.get("description", "")):
            assert (REPOSITORY / page).exists(), panel["title"]


def test_every_dashboard_is_a_config_map() -> None:
    made = yaml.safe_load((GRAFANA / "kustomization.yaml").read_text())
    assert {file for entry in made["configMapGenerator"] for file in entry["files"]} == {
        f"dashboards/{file.name}" for file in FILES
    }
