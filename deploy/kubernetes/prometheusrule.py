"""Writes monitoring/prometheusrule.yaml from the rule files of deploy/prometheus: one source for both.

python deploy/kubernetes/prometheusrule.py
"""

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
RULES = ("recording.rules.yaml", "alerting.rules.yaml")
TARGET = HERE / "monitoring/prometheusrule.yaml"


def render() -> str:
    """The PrometheusRule object as YAML."""
    files = [yaml.safe_load((HERE.parent / "prometheus" / name).read_text(encoding="utf-8")) for name in RULES]
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "preheat"},
        "spec": {"groups": [group for file in files for group in file["groups"]]},
    }
    return "# Made by prometheusrule.py; change deploy/prometheus instead.\n" + yaml.safe_dump(
        document, sort_keys=False, width=120
    )


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
