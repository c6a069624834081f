"""The configuration that ``preheat archive`` writes for TorchServe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from serving.torchserve.metrics import METRICS, document
from serving.torchserve.properties import metrics_text, parse, properties, render


def test_on_loopback_no_token_is_asked_for(tmp_path: Path) -> None:
    values = properties(tmp_path, 1000)
    assert values["inference_address"] == "http://127.0.0.1:8080"
    assert values["disable_token_authorization"] == "true"


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "serving.example"])
def test_where_others_reach_it_the_token_is_asked_for(tmp_path: Path, host: str) -> None:
    values = properties(tmp_path, 1000, host, 9000)
    assert values["inference_address"] == f"http://{host}:9000"
    assert values["disable_token_authorization"] == "false"
    assert values["management_address"] == "http://127.0.0.1:9001"
    assert values["metrics_address"] == "http://127.0.0.1:9002"
    elsewhere = properties(tmp_path, 1000, host, 9000, metrics_host="10.0.0.2")
    assert elsewhere["metrics_address"] == "http://10.0.0.2:9002"


def test_nothing_can_be_loaded_from_elsewhere_or_be_changed(tmp_path: Path) -> None:
    values = properties(tmp_path, 1000)
    for key in ("enable_model_api", "use_env_allowed_urls", "enable_envvars_config", "install_py_dep_per_model"):
        assert values[key] == "false"
    allowed = re.compile(values["allowed_urls"])
    assert allowed.fullmatch(f"file://{tmp_path}/a.mar")
    for url in ("https://example.com/a.mar", "file:///etc/a.mar", f"http://x/file://{tmp_path}/a.mar"):
        assert not allowed.fullmatch(url)


def test_bodies_may_be_as_large_as_the_models_take_them(tmp_path: Path) -> None:
    assert int(properties(tmp_path, 1000)["max_request_size"]) > 1000


def test_a_path_comes_through_as_java_reads_it() -> None:
    text = render({"store": "/a-b/\\d/é😀"})
    assert text.splitlines()[1] == "store=/a-b/\\\\d/\\u00e9\\ud83d\\ude00"
    assert text.isascii()


def test_values_are_found_again() -> None:
    assert parse("# a=b\n\nmax_request_size = 12\nurl=http://x?a=b\n") == {
        "max_request_size": "12",
        "url": "http://x?a=b",
    }


def test_torchserves_own_metrics_stay_and_ours_are_added() -> None:
    written = yaml.safe_load(metrics_text())
    names = {entry["name"] for kind in written["model_metrics"].values() for entry in kind}
    assert {metric.name for metric in METRICS} | {"HandlerTime", "PredictionTime"} == names
    assert any(entry["name"] == "ts_inference_requests_total" for entry in written["ts_metrics"]["counter"])


def test_a_document_is_not_changed_by_what_is_added() -> None:
    standard = {"ts_metrics": {}, "model_metrics": {"gauge": []}}
    document(standard)
    assert standard == {"ts_metrics": {}, "model_metrics": {"gauge": []}}
