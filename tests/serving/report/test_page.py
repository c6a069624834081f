from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from typer.testing import CliRunner

from serving.bench.result import BenchResult
from serving.cli.report import app
from serving.report.evidence import Evidence, Warmed, gather
from serving.report.page import render
from warmup.proof import Proof

runner = CliRunner()


class Wellformed(HTMLParser):
    """Checks that elements are closed in order, and collects what the page asks the browser to load."""

    VOID = {"meta", "link", "img", "br", "hr", "input"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("script", "link", "iframe"):
            self.loads.append(tag)
        self.loads += [
            f"{tag}: {v}" for name, v in attrs if name in ("src", "href", "xlink:href") and v and v[0] != "#"
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> Wellformed:
    parser = Wellformed()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_one_page_with_everything_and_nothing_from_outside(
    warm_file: Path, cold_file: Path, coverage_file: Path, cold: BenchResult
) -> None:
    page = render(gather(warm_file, [cold_file], coverage_file), "preheat report")
    parser = parsed(page)
    assert parser.loads == [] and "url(http" not in page and "@import" not in page
    assert page.count("<svg") == 5
    for wanted in (
        "5 of 6 planned shapes are proven",
        "83.3% of the expected",
        "unproven: budget",
        "85.0% of the distinct",
        "2.00 ms 6.00 ms3.00x 50.00 ms (4 of 17)100.00x",
        "x=1x3x224x224:fp3250.0%20 0- -- --",
        "1 x 503",
        str(cold.machine),
        "preheat bench <cold>",
        "0.0%",
    ):
        assert wanted in re.sub(r"\s+", " ", parser.text), wanted


def test_names_cannot_break_out_of_the_page(cold: BenchResult, proof: Proof) -> None:
    evil = replace(cold, model="<script>alert(1)</script>", label="<b>", asks=("<img src=x>",) * 6)
    page = render(Evidence(runs=(evil,), warmed=Warmed((proof,), {"<i>": "&"})), "x")
    assert parsed(page).loads == []
    assert "<script" not in page and "<img" not in page and "<i>" not in page


def test_a_proof_alone_and_a_run_alone(cold: BenchResult, proof: Proof) -> None:
    assert render(Evidence(warmed=Warmed((proof,))), "x").count("<svg") == 2
    assert render(Evidence(runs=(cold,)), "x").count("<svg") == 2


def test_command(warm_file: Path, cold_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    answer = runner.invoke(app, ["--warm", str(warm_file), "--bench", str(cold_file), "-o", str(out), "--json"])
    assert answer.exit_code == 0, answer.output
    assert '"models": [' in answer.stdout and out.read_text().startswith("<!doctype html>")


def test_a_page_that_another_command_makes_names_that_command(warm_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = runner.invoke(app, ["--warm", str(warm_file), "-o", str(out), "--made-by", "preheat demo"])
    assert result.exit_code == 0 and "with <code>preheat demo</code>" in out.read_text(encoding="utf-8")


def test_command_that_cannot_run(tmp_path: Path, warm_file: Path) -> None:
    for arguments, message in (
        ([], "nothing to report on"),
        (["--warm", str(tmp_path / "absent")], "absent"),
        (["--bench", str(warm_file)], "warm.json"),
        (["--warm", str(warm_file), "-o", str(tmp_path / "no" / "where.html")], "where.html"),
    ):
        answer = runner.invoke(app, arguments)
        assert answer.exit_code == 2 and message in answer.stderr, (arguments, answer.output)
