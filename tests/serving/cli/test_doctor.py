from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.cli.doctor import app

NODES = Path(__file__).parents[2] / "warmup/doctor/nodes"


@pytest.fixture(autouse=True)
def _healthy(monkeypatch, tmp_path):
    for name in ("MIOPEN_FIND_ENFORCE", "MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MIOPEN_FIND_MODE", "FAST")


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_node_as_json():
    result = run("--root", NODES / "mi300x-cpx", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["able"] is True
    assert len(document["gpus"]) == 8
    gpu = document["gpus"][0]
    assert (gpu["arch"], gpu["cu_count"], gpu["partition"]) == ("gfx942", 38, "CPX")
    assert document["rocm"] == "7.0.2"
    assert document["miopen"][0]["version"] == "3.5.0"
    for finding in document["findings"]:
        assert set(finding) == {"severity", "topic", "where", "what", "why", "do"}


def test_an_error_is_status_1_and_says_what_why_and_what_to_do(monkeypatch):
    monkeypatch.setenv("MIOPEN_FIND_ENFORCE", "SEARCH")
    result = run("--root", NODES / "mi300x-spx")
    assert result.exit_code == 1
    assert "MIOPEN_FIND_ENFORCE=SEARCH" in result.stdout
    assert "why: it forces the NORMAL find mode" in result.stdout
    assert "do:  unset MIOPEN_FIND_ENFORCE" in result.stdout
    assert "not able to serve what was warmed: 1 error" in result.stdout


def test_a_machine_without_a_gpu_is_told_so():
    result = run("--root", NODES / "none")
    assert result.exit_code == 0
    assert "no AMD GPU" in result.stdout and "able to serve without an AMD GPU" in result.stdout


def test_a_root_that_does_not_exist(tmp_path):
    result = run("--root", tmp_path / "none")
    assert result.exit_code == 2
    assert "no such directory" in result.stderr
