"""``preheat plan``: a model's shapes, the convolution problems behind them, and what a find-db says of those."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from handlers.errors import ModelError
from handlers.loading import find_models
from handlers.shapes import Shape, ShapeError
from handlers.spec import ModelSpec
from serving.cli.output import console, fail, print_json, reported
from serving.places import default_models
from warmup.coverage import Comparison, CoverageError, Records, ShapeCoverage, cover
from warmup.miopen.finddb import NotADatabase
from warmup.plan import Plan, PlannedShape, expand, require
from warmup.trace.model import nhwc_suggested, trace
from warmup.trace.result import PlanTrace, TraceError

app = typer.Typer()


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="A model's folder, or the name of one in the store.")],
    db: Annotated[
        list[Path] | None, typer.Option(help="A MIOpen find-db (.fdb.txt, .ufdb.txt, also .bz2); may be repeated.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="A shape to ask about instead of the planned ones, as in x=8x3x224x224:fp16; repeatable."),
    ] = None,
    model_store: Annotated[Path, typer.Option(help="The folder of model folders.")] = default_models(),
    nhwc: Annotated[
        bool | None,
        typer.Option(
            "--nhwc/--nchw", help="Whether PyTorch hands channels_last to MIOpen (PYTORCH_MIOPEN_SUGGEST_NHWC)."
        ),
    ] = None,
    minimum: Annotated[
        float | None,
        typer.Option("--min-coverage", min=0, max=1, help="Exit with 1 where less of the problems is covered."),
    ] = None,
    as_keys: Annotated[
        bool, typer.Option("--keys", help="Print the distinct find-db keys, one a line; with --db, the missing ones.")
    ] = False,
    placement: Annotated[
        bool,
        typer.Option("--placement", help="ONNX: how much of the graph each provider runs; fused nodes, transposes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the planned shapes and the convolutions that each asks of MIOpen; with --db, what is covered and its time.

    Needs no GPU. Predicted times are the database's own, for convolutions alone.
    """
    if minimum is not None and not db:
        fail("--min-coverage needs --db")
    with reported(ModelError, TraceError, ShapeError):
        spec, folder = _find(model, model_store)
        planned = expand(spec, folder)
        if shape:
            planned = _only(spec, planned, map(Shape.parse, shape))
        shapes = [item.shape for item in planned]
        if placement:
            from serving.cli.plan_placement import plan_placement

            plan_placement(spec, folder, shapes if shape else shapes[:1], as_json)
            return
        if spec.engine.kind == "python" and not (db or as_keys):
            _show_shapes(planned, as_json)
            return
        if spec.engine.kind == "torch":
            nhwc = nhwc_suggested() if nhwc is None else nhwc
        traced = trace(spec, folder, shapes, nhwc=nhwc)
    if not db:
        if as_keys:
            _print_keys(traced, ())
        else:
            _show_problems(planned, traced, nhwc, as_json)
        return
    with reported(CoverageError, NotADatabase):
        records = Records.load(db, traced.keys.values())
        covered = cover(planned, traced, records)
    share = _share(traced, records)
    if as_keys:
        _print_keys(traced, records.solutions)
    elif as_json:
        print_json(
            {
                **_head(planned, traced, nhwc),
                "databases": [str(path) for path in records.sources],
                "device": records.device,
                "covered": share,
                "shapes": [shape.to_json() for shape in covered],
            }
        )
    else:
        _show_coverage(planned, traced, records, covered, nhwc)
    if minimum is not None and share < minimum:
        raise typer.Exit(1)


def _find(model: str, store: Path) -> tuple[ModelSpec, Path]:
    folder = Path(model)
    if not (folder / "model.yaml").is_file() and (store / model / "model.yaml").is_file():
        folder = store / model
    if not (folder / "model.yaml").is_file():
        raise ModelError(f"{model!r} is neither a folder with a model.yaml nor a model in {store}")
    (found,) = find_models(folder.parent, [folder.name])
    return found.spec, found.folder


def _only(spec: ModelSpec, planned: Plan, wanted: Iterable[Shape]) -> Plan:
    """The shapes that were asked for, planned or not, as a plan."""
    shapes = [require(spec, shape, "--shape ") for shape in wanted]
    return Plan(planned.model, tuple(PlannedShape(shape, planned.weight(shape)) for shape in shapes))


def _print_keys(traced: PlanTrace, known: Container[str]) -> None:
    for key in dict.fromkeys(traced.keys.values()):
        if key not in known:
            typer.echo(key)


def _share(traced: PlanTrace, records: Records) -> float:
    """The part of the plan's distinct problems that has a record; 1 where there is no problem."""
    have = sum(key in records.solutions for key in traced.keys.values())
    return have / len(traced.problems) if traced.problems else 1.0


def _head(planned: Plan, traced: PlanTrace, nhwc: bool | None) -> dict[str, object]:
    return {
        "model": planned.model,
        "suggest_nhwc": nhwc,
        "problems": {"distinct": len(traced.problems), "total": traced.total},
    }


def _show_shapes(planned: Plan, as_json: bool) -> None:
    if as_json:
        shapes = [{"shape": item.shape.text, "weight": item.weight} for item in planned]
        print_json({"model": planned.model, "shapes": shapes})
        return
    table = Table(Column("shape", no_wrap=True), "weight")
    for item in planned:
        table.add_row(item.shape.text, f"{item.weight:.2%}")
    console.print(table)
    console.print(f"{planned.model}: {len(planned)} shapes; an engine of Python code cannot be traced for convolutions")


def _show_problems(planned: Plan, traced: PlanTrace, nhwc: bool | None, as_json: bool) -> None:
    if as_json:
        shapes = [
            {
                "shape": shape.shape.text,
                "weight": planned.weight(shape.shape),
                "problems": len(shape.calls),
                "executions": shape.executions,
                "keys": {traced.keys[problem]: count for problem, count in shape.calls.items()},
                "elsewhere": dict(shape.elsewhere),
            }
            for shape in traced
        ]
        print_json({**_head(planned, traced, nhwc), "shapes": shapes})
        return
    table = Table(Column("shape", no_wrap=True), "weight", "problems", "convolutions")
    for shape in traced:
        weight = f"{planned.weight(shape.shape):.2%}"
        table.add_row(shape.shape.text, weight, str(len(shape.calls)), str(shape.executions))
    console.print(table)
    _show_totals(planned, traced, nhwc)


def _show_coverage(
    planned: Plan, traced: PlanTrace, records: Records, covered: tuple[ShapeCoverage, ...], nhwc: bool | None
) -> None:
    table = Table(Column("shape", no_wrap=True), "weight", "problems", "covered", "best ms", "default-like", "naive")
    for shape in covered:
        table.add_row(
            shape.shape.text,
            f"{shape.weight:.2%}",
            str(shape.problems),
            f"{shape.covered}" if not shape.missing else f"[yellow]{shape.covered}[/]",
            "-" if shape.best_ms is None else f"{shape.best_ms:.3f}",
            _ratio(shape.default, shape.covered),
            _ratio(shape.naive, shape.covered),
        )
    console.print(table)
    _show_totals(planned, traced, nhwc)
    device = f", measured on {records.device}" if records.device else ""
    console.print(
        f"{_share(traced, records):.1%} of the distinct problems have a record (--json lists the missing keys). Times "
        f"are the database's own{device}: of convolutions alone, with the fastest solver of each; then how many times "
        "longer the fastest dynamic and the naive solver take, with the number of problems where not all are known.",
        highlight=False,
    )


def _ratio(comparison: Comparison | None, covered: int) -> str:
    if comparison is None:
        return "-"
    return f"{comparison.ratio:.2f}x" + (f" ({comparison.problems})" if comparison.problems != covered else "")


def _show_totals(planned: Plan, traced: PlanTrace, nhwc: bool | None) -> None:
    layout = "" if nhwc is None else f"; PyTorch's channels_last reaches MIOpen as {'NHWC' if nhwc else 'NCHW'}"
    console.print(
        f"{planned.model}: {len(planned)} shapes, {len(traced.problems)} distinct convolution problems "
        f"({traced.total} counted shape by shape){layout}",
        highlight=False,
    )
    reasons = {reason for shape in traced for reason in shape.elsewhere}
    for reason in sorted(reasons):
        console.print(f"not for MIOpen: {reason}", markup=False)
