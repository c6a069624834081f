"""``preheat verify``: the same inputs through two engines, and whether their outputs are close."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Column, Table
from rich.text import Text

from handlers.errors import ModelError
from handlers.loading import Model, find_models
from handlers.shapes import Shape, ShapeError
from handlers.spec import ModelSpec
from serving.cli.output import console, fail, print_json, reported
from serving.places import default_models
from warmup.plan import expand, require
from warmup.stores.registry import settings_for, stores_for
from warmup.stores.store import Phase

app = typer.Typer()


@app.command()
def verify(
    model: Annotated[str, typer.Argument(help="A model's folder, or the name of one in the store.")],
    against: Annotated[
        str, typer.Option(help="Another model (folder or name) that must give the same outputs; else the plain CPU.")
    ] = "",
    shape: Annotated[
        list[str] | None, typer.Option(help="This shape; may be repeated. Else every planned one.")
    ] = None,
    provider: Annotated[
        Literal["migraphx", "rocm", "cuda", "cpu"] | None, typer.Option(help="ONNX: run MODEL on this provider alone.")
    ] = None,
    execution: Annotated[
        Literal["eager", "compile", "graph"] | None, typer.Option(help="Torch: run MODEL this way.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=1e-12, max=1, help="Allowed error, relative to an output's largest value; else by precision."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs, which are random.")] = 0,
    bisect: Annotated[
        bool, typer.Option("--bisect/--no-bisect", help="ONNX: find the first node that differs.")
    ] = True,
    model_store: Annotated[Path, typer.Option(help="The folder of model folders.")] = default_models(),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run the same inputs through two engines and compare every output.

    MODEL as described is held against its reference: an ONNX file on ONNX Runtime's CPU provider without graph
    optimisation, a PyTorch module run eagerly on the CPU in fp32. Exit status 1 where an output differs.
    """
    with reported(ModelError, ShapeError), tempfile.TemporaryDirectory(prefix="preheat-verify-") as scratch:
        mine = _chosen(find(model, model_store), provider, execution)
        theirs = find(against, model_store) if against else None
        shapes = [require(mine.spec, Shape.parse(text)) for text in shape or ()]
        shapes = shapes or [planned.shape for planned in expand(mine.spec, mine.folder)]
        options = _prepare([mine.spec, *([theirs.spec] if theirs else [])], Path(scratch))
        from warmup.verify.proving import tolerance as of_model  # from here on frameworks may be imported
        from warmup.verify.sides import NothingToCompare, check, engine_side, other_side, plain_side

        allowed = tolerance if tolerance is not None else of_model(mine.spec)
        with reported(NothingToCompare):
            if theirs is None:
                first, second = plain_side(mine.spec, mine.folder), engine_side(mine.spec, mine.folder, options)
            else:
                first = engine_side(mine.spec, mine.folder, options)
                second = other_side(mine.spec, first.engine.outputs(), theirs, options)
        checks = check(first, second, shapes, allowed, seed, bisect)
        first.engine.close()
        second.engine.close()
    close = all(one.close for one in checks)
    if as_json:
        print_json(
            {
                "model": mine.spec.name,
                "expected": first.words,
                "found": second.words,
                "tolerance": allowed,
                "seed": seed,
                "close": close,
                "shapes": [one.to_json() for one in checks],
            }
        )
    else:
        _show(checks, first.words, second.words, allowed)
    raise typer.Exit(0 if close else 1)


def find(model: str, store: Path) -> Model:
    """A model by its folder, or by its name in the store; raises ModelError."""
    folder = Path(model)
    if not (folder / "model.yaml").is_file() and (store / model / "model.yaml").is_file():
        folder = store / model
    if not (folder / "model.yaml").is_file():
        raise ModelError(f"{model!r} is neither a folder with a model.yaml nor a model in {store}")
    return find_models(folder.parent, [folder.name])[0]


def _chosen(model: Model, provider: str | None, execution: str | None) -> Model:
    """The model, run as the options say instead of as it is described."""
    kind = model.spec.engine.kind
    update: dict[str, Any] = {}
    if provider is not None:
        if kind != "onnx":
            fail(f"--provider is for ONNX models; {model.spec.name} is {kind}")
        update["providers"] = (provider,)
    if execution is not None:
        if kind != "torch":
            fail(f"--execution is for torch models; {model.spec.name} is {kind}")
        update["execution"] = execution
    engine = model.spec.engine.model_copy(update=update)
    return Model(model.spec.model_copy(update={"engine": engine}), model.folder)


def _prepare(specs: list[ModelSpec], root: Path) -> dict[str, str]:
    """Empty stores for what engines compile, so that no cache of this user is read or filled; the engines' options."""
    stores = stores_for(specs)
    settings = settings_for(stores, Phase.SERVE, root)
    for store in stores:
        (root / store.name).mkdir(exist_ok=True)
    os.environ.update(settings.environment)
    return dict(settings.engine)


def _show(checks: list[Any], expected: str, found: str, tolerance: float) -> None:
    table = Table(Column("shape", no_wrap=True), "output", "max absolute", "max relative", "cosine", "")
    for check in checks:
        for output in check.outputs:
            agreement = output.agreement
            cells = [check.shape.text, output.name, f"{agreement.absolute:.3g}", f"{agreement.relative:.3g}"]
            table.add_row(*map(Text, [*cells, f"{agreement.cosine:.8f}", "close" if output.close else "DIFFERS"]))
    if not console.is_terminal:
        console.width = max(
            console.width, console.measure(table, options=console.options.update(max_width=10_000)).maximum
        )
    console.print(table)
    console.print(f"expected: {expected}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"found:    {found}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"relative to each output's largest value; allowed {tolerance:g}", markup=False, highlight=False)
    for check in checks:
        if check.divergence:
            console.print(
                f"{check.shape}: first node that differs: {check.divergence}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
