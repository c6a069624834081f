"""ONNX graphs cut open: sessions that give tensors from inside the graph, and the first node at which two part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from handlers.engines.agreement import Agreement, measure
from handlers.handler import Tensors
from warmup.sessions import CannotOpen, Wanted, open_session, run
from warmup.verify.bisection import Step, first_difference, needed


class CannotBisect(Exception):
    """Two graphs that cannot be held against each other node by node; the message says why."""


@dataclass(frozen=True)
class OnnxGraph:
    """An ONNX file, and the session in which it runs."""

    path: Path
    wanted: Wanted

    @cached_property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path, load_external_data=False)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every node of the outermost graph, in order; a node without a name goes by its first output."""
        return tuple(
            Step(node.name or node.output[0], node.op_type, _reads(node), tuple(filter(None, node.output)))
            for node in self.model.graph.node
        )

    @cached_property
    def tensors(self) -> frozenset[str]:
        """What the nodes write."""
        return frozenset(name for step in self.steps for name in step.writes)

    def run(self, inputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Tensors:
        """The named tensors, from a session of no more of the graph than they need. Raises CannotOpen."""
        session = open_session(self._giving(names), self.wanted, beside=self.path.parent)
        taken = {node.name for node in session.get_inputs()}
        return run(session, names, {name: array for name, array in inputs.items() if name in taken})

    def _giving(self, names: Sequence[str]) -> bytes:
        kept = {step.writes for step in needed(self.steps, names)}
        cut = onnx.ModelProto()
        cut.CopyFrom(self.model)
        nodes = [node for node in cut.graph.node if tuple(filter(None, node.output)) in kept]
        del cut.graph.node[:]
        cut.graph.node.extend(nodes)
        del cut.graph.output[:]
        cut.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)  # ONNX Runtime infers the types
        read = {name for node in nodes for name in _reads(node)} | set(names)
        _keep(cut.graph.initializer, read)
        _keep(cut.graph.input, read)  # an old file lists its weights as inputs too
        return cut.SerializeToString()


@dataclass(frozen=True)
class Divergence:
    """Where two graphs part. ``nodes`` is one node, or those between which nothing can be compared.

    ``before`` is the worst agreement of what they read, ``after`` of what they write, as seen together in one run.
    ``alone`` is false where the difference is not seen in that run: looking at the tensors undoes the fusion of nodes
    that makes it.
    """

    nodes: tuple[Step, ...]
    before: Agreement
    after: Agreement
    alone: bool

    def __str__(self) -> str:
        first, last = self.nodes[0], self.nodes[-1]
        where = str(first) if len(self.nodes) == 1 else f"between {first} and {last}"
        if not self.alone:
            return f"{where}, as it is fused with its neighbours: it agrees where its inputs are looked at as well"
        return f"{where}: inputs agree to {self.before.relative:.2g}, outputs differ by {self.after.relative:.2g}"

    def to_json(self) -> dict[str, object]:
        return {
            "nodes": [{"name": step.name, "operation": step.operation} for step in self.nodes],
            "inputs_relative": self.before.relative if np.isfinite(self.before.relative) else None,
            "outputs_relative": self.after.relative if np.isfinite(self.after.relative) else None,
            "fused": not self.alone,
        }


def bisect(
    expected: OnnxGraph, found: OnnxGraph, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], tolerance: float
) -> Divergence:
    """The first node of ``expected`` whose outputs differ in ``found`` while its inputs agree.

    ``outputs`` are the graph's outputs that differ. Both graphs must name tensors alike; where they do not, nodes are
    taken together. Raises CannotBisect.
    """
    steps = needed(expected.steps, outputs)
    if not steps:
        raise CannotBisect(f"{expected.path}: no node writes {', '.join(outputs)}")

    def agreements(names: Sequence[str]) -> dict[str, Agreement]:
        try:
            mine, theirs = expected.run(inputs, names), found.run(inputs, names)
        except CannotOpen as error:
            raise CannotBisect(f"the graph cannot be cut at {', '.join(names[:3])}: {error}") from error
        return {name: measure(np.asarray(mine[name]), np.asarray(theirs[name])) for name in names}

    def differ(names: tuple[str, ...]) -> bool:
        return not all(agreement.within(tolerance) for agreement in agreements(names).values())

    nodes = first_difference(steps, outputs, differ, found.tensors.__contains__)
    written = [name for step in nodes for name in step.writes if name in found.tensors]
    read = [
        name
        for name in dict.fromkeys(name for step in nodes for name in step.reads)
        if name in expected.tensors & found.tensors and name not in written
    ]
    seen = agreements(tuple(dict.fromkeys([*read, *written])))
    before = max((seen[name] for name in read), key=_farness, default=Agreement(0.0, 0.0, 1.0))
    after = max((seen[name] for name in written), key=_farness)
    return Divergence(nodes, before, after, before.within(tolerance) and not after.within(tolerance))


def _keep(field: Any, names: set[str]) -> None:
    """Leaves only what has one of these names in a repeated field."""
    kept = [value for value in field if value.name in names]
    del field[:]
    field.extend(kept)


def _farness(agreement: Agreement) -> tuple[float, float]:
    return agreement.relative, -agreement.cosine


def _reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """What a node reads, bodies of branches and loops included: they see the tensors around them."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            made = {name for inner in graph.node for name in inner.output}
            names += [name for inner in graph.node for name in _reads(inner) if name not in made]
            names += [value.name for value in graph.output if value.name not in made]
    return tuple(dict.fromkeys(names))
