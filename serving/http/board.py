"""The warm board, the page of ``/``: which shapes are warm, and what requests meet.

The numbers are in the page itself; its few lines of script only fetch them again. Nothing comes from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from handlers.shapes import Shape, TensorShape
from serving.http.board_style import SCRIPT, STYLE
from serving.metrics.recorder import Recent

HEADERS = {
    "cache-control": "no-store",
    "vary": "accept",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'",
}
_STEPS = 5  # shades of the heat map, evenly spaced in log scale


@dataclass(frozen=True)
class Card:
    """One model. ``shapes`` is the answer of ``/v2/models/NAME/shapes``, ``axis`` the name of the first axis."""

    shapes: Mapping[str, Any]
    axis: str
    error: str
    recent: Recent
    waiting: int
    running: int


@dataclass(frozen=True)
class Board:
    """One server. ``bundle`` is the digest of what is served, empty where nothing was proven."""

    ready: bool
    draining: bool
    bundle: str
    identity: Mapping[str, str]
    version: str
    cards: tuple[Card, ...]


def render(board: Board) -> str:
    """The page as HTML."""
    state = "draining" if board.draining else "ready" if board.ready else "not ready"
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<noscript><meta http-equiv="refresh" content="5"></noscript>',
            f"<title>{state}: Preheat</title><style>{STYLE}</style></head><body><main>",
            f"<header><h1>Preheat</h1>{_pill(state)}{_bundle(board)}</header>",
            *(_card(card) for card in board.cards),
            "" if board.cards else "<p>No model is served.</p>",
            f'<footer>Preheat {escape(board.version)}. <a href="/docs">Endpoints</a> ',
            '<a href="/metrics">Metrics</a></footer>',
            f"</main><script>{SCRIPT}</script></body></html>\n",
        )
    )


def _bundle(board: Board) -> str:
    if not board.bundle:
        return '<p class="soft">Served without a bundle: nothing is proven.</p>'
    facts = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in sorted(board.identity.items()))
    return (
        f'<details id="bundle"><summary>bundle <code>{escape(board.bundle[:19])}</code></summary>'
        f"<table><tr><th>digest</th><td>{escape(board.bundle)}</td></tr>{facts}</table></details>"
    )


def _card(card: Card) -> str:
    document = card.shapes
    outcomes = document["outcomes"]
    total = sum(outcomes.values())
    warm = sum(row["warm"] for row in document["shapes"])
    recent = card.recent
    name = escape(document["name"])
    tiles = (
        _tile("hit rate", _percent(recent.hit_rate), _last(recent.count), recent.hit_rate, 0.99),
        _tile("P99", _seconds(recent.p99_seconds), _last(recent.count)),
        _tile("warm shapes", f"{warm} of {len(document['shapes'])}", f"{document['coverage']:.0%} of expected traffic"),
        _tile("waiting", str(card.waiting), f"{card.running} in execution"),
    )
    parts = [
        f'<section aria-label="{name}"><h2>{name} <small>version {escape(document["version"])}</small>',
        f"{_pill(document['state'])}</h2>",
        f'<p class="error">{escape(card.error)}</p>' if card.error else "",
        f'<dl class="tiles">{"".join(tiles)}</dl>',
        _outcomes(outcomes, total),
        _heat_map(document["shapes"], card.axis),
        _met_cold(document["met_cold"], document["met_cold_at"], document["cold"]),
        "</section>",
    ]
    return "".join(parts)


def _last(count: int) -> str:
    return f"of the last {count:,} requests" if count else "no request yet"


def _tile(name: str, value: str, note: str, measure: float | None = None, wanted: float = 0.0) -> str:
    mark = "" if measure is None else " class=good" if measure >= wanted else " class=bad"
    return f"<div><dt>{name}</dt><dd{mark}>{value}</dd><dd class=soft>{escape(note)}</dd></div>"


def _pill(state: str) -> str:
    kind = "good" if state == "ready" else "bad" if state in ("failed", "not ready") else "busy"
    return f'<span class="pill {kind}">{escape(state)}</span>'


def _outcomes(outcomes: Mapping[str, int], total: int) -> str:
    """A bar of what all requests met since the model was loaded, with the counts as words."""
    words = " ".join(f'<span><i class="{name}"></i>{name} <b>{count:,}</b></span>' for name, count in outcomes.items())
    bar = "".join(
        f'<i class="{name}" style="width:{count / total:.4%}"></i>' for name, count in outcomes.items() if count
    )
    return f'<div class="bar">{bar}</div><p class="key">since it was loaded: {words}</p>'


def _heat_map(rows: list[dict[str, Any]], axis: str) -> str:
    """A table of the planned shapes: the first axis across, all others down."""
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        shape = Shape.parse(row["shape"])
        first = next((tensor.dims[0] for tensor in shape if tensor.dims), 0)
        rest = ", ".join(_rest(tensor, first) for tensor in shape)
        cells[rest, first] = row
    across = sorted({first for _, first in cells})
    down = list(dict.fromkeys(rest for rest, _ in cells))
    times = sorted(row["steady_seconds"] for row in rows if row["steady_seconds"])
    head = "".join(f"<th scope=col>{first}</th>" for first in across)
    body = "".join(
        f"<tr><th scope=row>{escape(rest)}</th>"
        + "".join(_cell(cells[rest, first], times) if (rest, first) in cells else "<td></td>" for first in across)
        + "</tr>"
        for rest in down
    )
    shades = "".join(f'<i class="heat{step}"></i>' for step in range(_STEPS))
    scale = f"<span>{_seconds(times[0])} {shades} {_seconds(times[-1])}</span>" if times else ""
    return (
        f'<h3>Planned shapes</h3><div class="scroll"><table class="heat"><tr><th>{escape(axis)}</th>{head}</tr>{body}'
        f'</table></div><p class="key">steady time as proven: {scale} '
        '<span><i class="proven"></i>proven, not warm yet</span> <span><i class="planned"></i>not proven</span></p>'
    )


def _rest(tensor: TensorShape, first: int) -> str:
    """A tensor without the axis that is shown across."""
    dims = tensor.dims[1:] if tensor.dims[:1] == (first,) else tensor.dims
    return f"{tensor.name} {'x'.join(map(str, dims))}".strip()


def _cell(row: Mapping[str, Any], times: list[float]) -> str:
    steady = row["steady_seconds"]
    state = "warm" if row["warm"] else "proven" if row["proven"] else "planned"
    shade = f" heat{_step(steady, times[0], times[-1])}" if row["warm"] and steady else ""
    facts = [f"{row['shape']}: {state}", f"weight {row['weight']:.3g}"]
    facts += [
        f"{name} {_seconds(row[f'{key}_seconds'])}"
        for name, key in (("cold", "cold"), ("first call", "first"), ("steady", "steady"))
        if row[f"{key}_seconds"] is not None
    ]
    if row["reason"]:
        facts.append(row["reason"])
    text = _seconds(steady) if steady else state if row["warm"] or row["proven"] else "not proven"
    return f'<td class="{state}{shade}" title="{escape("; ".join(facts))}">{escape(text)}</td>'


def _step(value: float, low: float, high: float) -> int:
    """Which of the shades a time has, from 0 for ``low`` to the last for ``high``."""
    if high <= low:
        return 0
    return min(_STEPS - 1, int(_STEPS * math.log(value / low) / math.log(high / low)))


def _met_cold(counts: Mapping[str, int], times: Mapping[str, Mapping[str, str]], policy: str) -> str:
    if not counts:
        return ""
    most = sorted(counts.items(), key=lambda item: -item[1])[:10]
    rows = "".join(
        f"<tr><td><code>{escape(text)}</code></td><td class=number>{count:,}</td>"
        f"<td>{_time(times[text]['first'])}</td><td>{_time(times[text]['last'])}</td></tr>"
        for text, count in most
    )
    more = f"<p class=soft>and {len(counts) - 10:,} more</p>" if len(counts) > 10 else ""
    return (
        f"<h3>Met cold <small>policy: {escape(policy)}</small></h3>"
        '<div class="scroll"><table class="cold"><tr><th>shape</th><th class=number>requests</th><th>first, UTC</th>'
        f"<th>last, UTC</th></tr>{rows}</table></div>{more}"
    )


def _time(moment: str) -> str:
    """A moment in ISO 8601, to the second."""
    text = escape(moment)
    return f'<time datetime="{text}">{text[:10]} {text[11:19]}</time>'


def _percent(share: float | None) -> str:
    return "–" if share is None else "100 %" if share == 1 else f"{math.floor(share * 1000) / 10:.1f} %"


def _seconds(seconds: float | None) -> str:
    """Three digits with a unit, as in 1.25 ms; a dash for None."""
    if seconds is None:
        return "–"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{float(f'{seconds * factor:.3g}'):g} {unit}"
    return f"{float(f'{seconds * 1e6:.3g}'):g} µs"
