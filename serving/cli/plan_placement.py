"""``preheat plan --placement``: how much of an ONNX graph each provider runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Column, Table

from handlers.errors import ModelError
from handlers.shapes import Shape
from handlers.sources import resolve
from handlers.spec import ModelSpec
from serving.cli.output import console, print_json

_SHOWN = 10  # nodes on the CPU that are named


def plan_placement(spec: ModelSpec, folder: Path, shapes: Sequence[Shape], as_json: bool) -> None:
    """Prints it for every shape and every provider of the model. Raises ModelError, TraceError."""
    if spec.engine.kind != "onnx":
        raise ModelError(f"{spec.name}: --placement is for ONNX models, this one is {spec.engine.kind}")
    from warmup.placement import ProviderPlacement, place
    from warmup.sessions import wanted_for

    path = resolve(spec.engine.source, folder)
    found: list[ProviderPlacement] = []
    unknown: dict[str, str] = {}
    for shape in shapes:
        for provider in spec.engine.providers:
            placed = place(path, shape, wanted_for(spec, provider))
            if isinstance(placed, ProviderPlacement):
                found.append(placed)
            else:
                unknown[provider] = placed
    if as_json:
        print_json({"model": spec.name, "placements": [placed.to_json() for placed in found], "unknown": unknown})
        return
    table = Table(
        Column("shape", no_wrap=True), "provider", "from", "nodes", "operations", "fused", "layout transposes"
    )
    for placed in found:
        taken = placed.nodes - len(placed.left)
        known = placed.transposes is not None
        table.add_row(
            placed.shape.text,
            placed.provider,
            placed.source,
            f"{taken} of {placed.nodes} ({placed.node_share:.1%})",
            f"{placed.operation_share:.2%} of {placed.operations / 1e9:.3g} G",
            str(sum(placed.fused.values())) if known else "-",
            str(placed.transposes) if known else "-",
        )
    if not console.is_terminal:
        wide = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
    for placed in found:
        for node in placed.left[:_SHOWN]:
            console.print(
                f"{placed.provider}: on the CPU: {node.op} {node.name}: {node.reason}", markup=False, highlight=False
            )
        if len(placed.left) > _SHOWN:
            console.print(f"{placed.provider}: and {len(placed.left) - _SHOWN} more (--json lists them)")
    for reason in unknown.values():
        console.print(reason, markup=False, highlight=False, soft_wrap=True)
