"""``preheat archive``: archives and a configuration, and what it says where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving.cli import app

Archive = Callable[..., Any]  # what CliRunner gives back

_MODEL = """
name: {name}
engine: {{kind: python, source: "net.py:Net"}}
inputs: [{{name: x, dtype: float32, dims: [batch, 4]}}]
outputs: [{{name: y, dtype: float32, dims: [batch, 4]}}]
shapes: {{grid: {{batch: [1, 2]}}}}
limits: {{request_bytes: {size}}}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Runs ``preheat archive`` on a store with ``small`` and ``large``, into ``out``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, size in (("small", 1000), ("large", 2_000_000)):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.yaml").write_text(_MODEL.format(name=name, size=size))
        (folder / "net.py").write_text("class Net:\n    def run(self, inputs):\n        return {'y': inputs['x']}\n")
    fixed = ["--model-store", str(tmp_path / "models"), "--out", str(tmp_path / "out")]
    return lambda *arguments: CliRunner().invoke(app, ["archive", *arguments, *fixed])


def test_it_makes_archives_and_a_configuration(run: Archive, tmp_path: Path) -> None:
    done = run("--unproven", "--json")
    assert done.exit_code == 0, done.output
    out = tmp_path / "out"
    found = json.loads(done.stdout)
    assert [entry["path"] for entry in found["archives"]] == [str(out / "large.mar"), str(out / "small.mar")]
    assert (found["bundle"], found["device"]) == ("", "cpu")
    assert sorted(path.name for path in out.iterdir()) == [
        "config.properties",
        "large.mar",
        "metrics.yaml",
        "small.mar",
    ]
    assert "max_request_size=2065536" in (out / "config.properties").read_text()
    assert found["command"].endswith(f"--ts-config {out / 'config.properties'}")


def test_a_configuration_that_is_there_is_left_and_what_it_lacks_is_said(run: Archive, tmp_path: Path) -> None:
    assert run("small", "--unproven").exit_code == 0
    properties = tmp_path / "out" / "config.properties"
    written = properties.read_text()
    done = run("large", "--unproven")
    assert done.exit_code == 0
    assert "set max_request_size=2065536" in done.stderr
    assert properties.read_text() == written
    assert run("large", "--unproven", "--force").exit_code == 0
    assert "max_request_size=2065536" in properties.read_text()


def test_beyond_loopback_the_token_is_on_and_said(run: Archive, tmp_path: Path) -> None:
    done = run("small", "--unproven", "--host", "0.0.0.0")
    assert "needs TorchServe's token" in done.stderr
    assert "disable_token_authorization=false" in (tmp_path / "out" / "config.properties").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("nobody", "--unproven"), 2, "nobody"),
        (("small",), 2, "no bundle here"),
        (("small", "--unproven", "--bundle", "x"), 2, "--unproven excludes"),
        (("small", "--unproven", "--reference"), 2, "--unproven excludes"),
        (("small", "--bundle", "nowhere"), 2, "nowhere"),
    ],
)
def test_what_is_wrong_is_one_line(
    run: Archive, tmp_path: Path, arguments: tuple[str, ...], status: int, says: str
) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (status, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_archive_that_is_there_is_not_replaced(run: Archive) -> None:
    assert run("small", "--unproven").exit_code == 0
    done = run("small", "--unproven")
    assert done.exit_code == 2
    assert "--force replaces it" in done.stderr
