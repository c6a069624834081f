"""The Prometheus rules: promtool's own checks and unit tests, and that all of it speaks of metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from serving.metrics.metrics import REQUEST_BUCKETS, Metrics

REPOSITORY = Path(__file__).resolve().parents[2]
PROMETHEUS = REPOSITORY / "deploy/prometheus"
RUNBOOKS = REPOSITORY / "docs/runbooks"
UNIT_TESTS = sorted((PROMETHEUS / "tests").glob("*.test.yaml"))


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    return found


def rules(file: str, kind: str) -> list[dict]:
    document = yaml.safe_load((PROMETHEUS / file).read_text())
    return [rule for group in document["groups"] for rule in group["rules"] if kind in rule]


RECORDINGS = rules("recording.rules.yaml", "record")
ALERTS = rules("alerting.rules.yaml", "alert")


def test_configuration_and_rules_are_accepted(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "config", "prometheus.yaml"], cwd=PROMETHEUS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda file: file.name)
def test_rules_do_what_their_unit_tests_say(promtool: str, file: Path) -> None:
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_unit_test_and_every_alert_one_in_which_it_is_on() -> None:
    cases = [case for file in UNIT_TESTS for case in yaml.safe_load(file.read_text())["tests"]]
    asked = " ".join(check["expr"] for case in cases for check in case.get("promql_expr_test", ()))
    assert [rule["record"] for rule in RECORDINGS if rule["record"] not in asked] == []
    checks = [check for case in cases for check in case.get("alert_rule_test", ())]
    on = {check["alertname"] for check in checks if check["exp_alerts"]}
    off = {check["alertname"] for check in checks if not check["exp_alerts"]}
    assert on == off == {rule["alert"] for rule in ALERTS}


def test_every_alert_has_a_runbook_that_names_it_and_every_runbook_an_alert() -> None:
    pages = {}
    for rule in ALERTS:
        page = REPOSITORY / rule["annotations"]["runbook_url"]
        assert rule["alert"] in page.read_text(encoding="utf-8").splitlines()[0], f"{page} is not about {rule['alert']}"
        pages[page] = rule
    assert set(pages) == set(RUNBOOKS.glob("*.md"))


def test_rules_read_metrics_that_the_server_has_and_bounds_that_are_buckets() -> None:
    exposed = Metrics()
    names = {family.name for family in exposed._registry.collect()}
    recorded = {rule["record"] for rule in RECORDINGS}
    for rule in RECORDINGS + ALERTS:
        for name in re.findall(r"(?<![:\w])(?:\w+:)?preheat_\w+(?::\w+)?", rule["expr"]):
            known = name in recorded or re.sub(r"_(bucket|count|sum|total)$", "", name) in names or name in names
            assert known, f"{rule}: {name} is no metric"
        for bound in re.findall(r'le="([^"]+)"', rule["expr"]):
            assert float(bound) in REQUEST_BUCKETS and str(float(bound)) == bound
