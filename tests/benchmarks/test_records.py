from __future__ import annotations

import io

import pytest
import typer
from rich.console import Console

from benchmarks.records import Check, command, conclude


def test_a_command_line_is_kept_but_for_where_its_results_went() -> None:
    arguments = ["--rounds", "2", "--out", "/somewhere/results", "--only", "a b"]
    assert command("overhead", arguments) == "python -m benchmarks.overhead --rounds 2 --only 'a b'"
    assert command("gpu", ["--out=/somewhere", "resnet50"]) == "python -m benchmarks.gpu resnet50"


def test_a_missed_goal_is_named_and_ends_with_1() -> None:
    text = io.StringIO()
    console = Console(file=text)
    conclude([Check("above 1", "2", True)], console)
    with pytest.raises(typer.Exit) as raised:
        conclude([Check("above 1", "2", True), Check("above 3", "2", False)], console)
    assert raised.value.exit_code == 1
    assert text.getvalue().splitlines()[-2:] == ["reached above 1: 2", "MISSED  above 3: 2"]


def test_where_files_lie_is_left_out() -> None:
    arguments = ["/home/me/bundle", "models", "net", "--out", "/tmp/x"]
    assert command("migraphx_ready", arguments) == "python -m benchmarks.migraphx_ready bundle models net"
