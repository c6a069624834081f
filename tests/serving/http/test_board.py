"""The warm board: the numbers are in the page itself, and nothing in it comes from elsewhere."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.http.board import Board, Card, render
from serving.metrics.recorder import Recent
from serving.process import ServerProcess

BODY = {"inputs": [{"name": "x", "shape": [1, 1, 2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


def row(shape: str, steady: float | None, *, warm: bool = True, reason: str = "") -> dict[str, Any]:
    return {
        "shape": shape,
        "weight": 0.25,
        "proven": steady is not None,
        "warm": warm,
        "cold_seconds": 2.5,
        "first_seconds": steady,
        "steady_seconds": steady,
        "reason": reason,
    }


CARD = Card(
    shapes={
        "name": "digits",
        "version": "7",
        "state": "ready",
        "cold": "run",
        "coverage": 0.75,
        "outcomes": {"warm": 1500, "padded": 400, "cold": 100},
        "shapes": [
            row("x=1x8:fp32", 0.001),
            row("x=2x8:fp32", 0.0021),
            row("x=1x64:fp32", 0.1, warm=False),
            row("x=2x64:fp32", None, warm=False, reason="budget"),
        ],
        "met_cold": {"x=1x9:fp32": 100},
        "met_cold_at": {
            "x=1x9:fp32": {"first": "2026-01-02T03:04:05.678+00:00", "last": "2026-01-02T13:14:15.000+00:00"}
        },
    },
    axis="batch",
    error="",
    recent=Recent(1000, 0.01234, 0.9549),
    waiting=3,
    running=1,
)
BOARD = Board(True, False, "sha256:" + "ab" * 32, {"gpu_arch": "gfx942"}, "1.2.3", (CARD,))


class Page(HTMLParser):
    """Cells with their classes, what the page loads or links, and its balance of tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: dict[str, str] = {}
        self.links: list[str] = []
        self.open: list[str] = []
        self._cell: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "action")]
        self._cell = f"{found.get('class')}" if tag == "td" and "title" in found else None

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self.cells[data] = self._cell


def test_numbers_are_in_the_page() -> None:
    text = render(BOARD)
    for number in ("95.4 %", "12.3 ms", "2 of 4", "75%", "1,500", "x=1x9:fp32", "1 in execution", "gfx942"):
        assert number in text, number
    assert re.search(r"waiting</dt><dd>3<", text)


def test_what_was_met_cold_is_there_with_the_times() -> None:
    text = re.sub(r"<[^>]+>", " ", render(BOARD))
    assert re.search(r"x=1x9:fp32\s+100\s+2026-01-02 03:04:05\s+2026-01-02 13:14:15", text)


def test_shapes_are_coloured_by_state_and_by_time() -> None:
    cells = Page(render(BOARD)).cells
    assert cells == {"1 ms": "warm heat0", "2.1 ms": "warm heat0", "100 ms": "proven", "not proven": "planned"}
    slow = replace(CARD, shapes={**CARD.shapes, "shapes": [row("x=1x8:fp32", 0.001), row("x=1x64:fp32", 0.1)]})
    assert Page(render(replace(BOARD, cards=(slow,)))).cells == {"1 ms": "warm heat0", "100 ms": "warm heat4"}


def test_a_hit_rate_is_never_rounded_up_to_all() -> None:
    nearly = replace(CARD, recent=Recent(1000, 0.01, 0.99999))
    assert "99.9 %" in render(replace(BOARD, cards=(nearly,)))


def test_what_is_not_known_yet_is_a_dash() -> None:
    fresh = replace(CARD, recent=Recent(0, None, None))
    assert render(replace(BOARD, cards=(fresh,))).count("<dd>–</dd>") == 2


@pytest.mark.parametrize(
    ("ready", "draining", "word"), [(True, False, "ready"), (False, False, "not ready"), (False, True, "draining")]
)
def test_the_state_is_in_the_title(ready: bool, draining: bool, word: str) -> None:
    assert f"<title>{word}: Preheat</title>" in render(replace(BOARD, ready=ready, draining=draining))


def test_names_are_text_and_never_markup() -> None:
    bad = "<script>alert(1)</script>"
    shapes = {
        **CARD.shapes,
        "name": bad,
        "version": bad,
        "met_cold": {bad: 1},
        "met_cold_at": {bad: dict.fromkeys(("first", "last"), bad)},
    }
    shapes["shapes"] = [row("x=1x8:fp32", None, warm=False, reason=f'"{bad}')]
    card = replace(CARD, shapes=shapes, error=bad, axis=bad)
    text = render(replace(BOARD, cards=(card,), bundle=bad, identity={bad: bad}))
    assert bad not in text and 'title="x=1x8:fp32: planned; weight 0.25; cold 2.5 s; &quot;&lt;script' in text


def test_the_page_is_balanced_and_asks_for_nothing_from_elsewhere() -> None:
    page = Page(render(BOARD))
    assert page.open == [] and set(page.links) == {"/docs", "/metrics"}


def test_browsers_get_the_page_and_programs_the_document(null_server: ServerProcess) -> None:
    browser = httpx.get(null_server.url, headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert browser.headers["content-type"].startswith("text/html") and "<h2>null" in browser.text
    assert browser.headers["vary"] == "accept" and "default-src 'none'" in browser.headers["content-security-policy"]
    for headers in ({}, {"accept": "application/json"}, {"accept": "*/*"}):
        program = httpx.get(null_server.url, headers=headers)
        assert [model["name"] for model in program.json()["serving"]] == ["null"]


@pytest.mark.slow
def test_chromium_shows_what_was_served_and_keeps_it_fresh(
    null_server: ServerProcess, chromium: list[str], tmp_path: Path
) -> None:
    for _ in range(3):
        assert httpx.post(f"{null_server.url}/v2/models/null/infer", json=BODY).status_code == 200
    script = ["--run-all-compositor-stages-before-draw", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [*chromium, *script, f"--user-data-dir={tmp_path}", null_server.url],
        capture_output=True,
        text=True,
        timeout=120,
    )
    page = done.stdout
    assert "<h2>null" in page and re.search(r"of the last \d+ requests", page), done.stderr
    assert 'style="opacity: 1' in page, "the script has fetched the page again"
