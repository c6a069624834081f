"""``preheat bench --breakdown``: where the time of an ONNX model goes, on every provider that can be had here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.table import Column, Table
from rich.text import Text

from handlers.errors import ModelError
from handlers.shapes import Shape, ShapeError
from handlers.sources import resolve
from serving.cli.output import console, fail, print_json, reported
from serving.cli.verify import find
from warmup.plan import expand, require

_LEFT, _RIGHT = ("shape", "provider", ""), ("T_parse", "T_opt", "T_exec", "T_copy", "rest", "total")


def bench_breakdown(model: str, model_store: Path, shapes: Sequence[str], repeats: int, as_json: bool) -> None:
    """Measures and prints; raises typer.Exit with 1 where the parts do not explain the total."""
    from serving.bench.breakdown import Breakdown, measure, verdict
    from warmup.sessions import CannotOpen, wanted_for

    with reported(ModelError, ShapeError):
        found = find(model, model_store)
        spec, folder = found.spec, found.folder
        if spec.engine.kind != "onnx":
            fail(f"--breakdown is for ONNX models; {spec.name} is {spec.engine.kind}")
        path = resolve(spec.engine.source, folder)
        chosen = [require(spec, Shape.parse(text)) for text in shapes] or [p.shape for p in expand(spec, folder)]
    rows: list[Breakdown] = []
    absent: dict[str, str] = {}
    for shape in chosen:
        for provider in dict.fromkeys((*spec.engine.providers, "cpu")):
            if provider in absent:
                continue
            try:
                rows.append(measure(path, shape, wanted_for(spec, provider), repeats))
            except CannotOpen as error:
                absent[provider] = str(error)
    if not rows:
        fail(f"{spec.name}: no provider can be had: {'; '.join(absent.values())}")
    verdicts = {s.text: verdict(mine) for s in chosen if (mine := [row for row in rows if row.shape == s])}
    if as_json:
        print_json(
            {
                "model": spec.name,
                "repeats": repeats,
                "rows": [row.to_json() for row in rows],
                "verdicts": verdicts,
                "absent": absent,
            }
        )
    else:
        _show(rows, verdicts, absent)
    raise typer.Exit(0 if all(row.first.holds and row.steady.holds for row in rows) else 1)


def _show(rows: Sequence, verdicts: dict[str, str], absent: dict[str, str]) -> None:
    table = Table(*(Column(name, no_wrap=True) for name in _LEFT), *(Column(name, justify="right") for name in _RIGHT))
    for row in rows:
        for what, parts in (("first", row.first), ("steady", row.steady)):
            seconds = (parts.parse, parts.optimise, parts.execute, parts.copy, parts.rest, parts.total)
            cells = [row.shape.text, row.provider, what, *(f"{value * 1e3:.2f}" for value in seconds)]
            table.add_row(*map(Text, cells), style=None if parts.holds else "yellow")
    if not console.is_terminal:
        wide = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
    console.print(
        "Milliseconds. first: from the file to the first outputs; steady: the median of the further executions."
    )
    for shape, text in verdicts.items():
        console.print(f"{shape}: {text}", markup=False, highlight=False, soft_wrap=True)
    for reason in absent.values():
        console.print(f"not here: {reason}", markup=False, highlight=False, soft_wrap=True)
    loose = [row for row in rows if not (row.first.holds and row.steady.holds)]
    if loose:
        console.print(
            f"{len(loose)} of {len(rows)} breakdowns leave over 3 % unexplained: another process was at work?"
        )
