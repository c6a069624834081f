"""What ``preheat warm --problems`` says where it cannot run. Where it can is shown by tests/conformance."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from serving.cli.warm import app
from warmup.miopen.library import LIBRARY_VARIABLE

KEY = "8-14-14-3x3-8-14-14-1-1x1-1x1-1x1-0-NCHW-FP32-F"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "libMIOpen.so.1"))

    def invoke(*arguments: str, text: str | None = None):
        source = tmp_path / "problems.txt"
        if text is not None:
            source.write_text(text)
        return CliRunner().invoke(app, ["--problems", str(source), "--out", str(tmp_path / "out"), *arguments])

    return invoke


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "problems.txt: No such file or directory"),
        ("", "problems.txt: no problem in it"),
        (f"{KEY}\n8-14\n", "problems.txt: line 2: key '8-14'"),
        (KEY, "MIOpen cannot run: the process ended with status 1: MIOpen cannot be loaded: "),
    ],
)
def test_what_cannot_run_is_one_line_and_status_2(run, text, told):
    done = run(text=text)
    assert done.exit_code == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("preheat: ") and told in last
    assert done.stdout == ""


def test_models_or_the_default_place_do_not_go_with_it(run, tmp_path):
    assert run("digits", text=KEY).exit_code == 2
    done = CliRunner().invoke(app, ["--problems", str(tmp_path / "problems.txt")])
    assert done.exit_code == 2 and "--out of its own" in done.stderr
