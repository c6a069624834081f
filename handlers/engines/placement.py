"""Which nodes of a graph ONNX Runtime gave to the CPU although another provider was asked for, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

# onnxruntime/core/framework/session_state.cc, VerifyEachNodeIsAssignedToAnEp: a heading, then "  Op (name)" lines. The
# latter are left out where all nodes are on one provider.
_HEADING = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(?:All nodes|Node\(s\)) placed on \[(\w+)\].*?: (\d+)")
_NODE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\S+) \((.*)\)")
# onnxruntime/core/framework/fallback_cpu_capability.cc, GetCpuPreferredNodes: nodes that compute shapes.
_PREFERRED = re.compile(r"Force fallback to CPU execution for node: (.*?) because (.*)")
# rocm_execution_provider.cc and cuda_execution_provider.cc, GetCapability
_NO_KERNEL = re.compile(r"\] (\w+ kernel not found in registries) for Op type: (\S+) node name: (.*)")
_COPIES = ("MemcpyToHost", "MemcpyFromHost")  # added between providers: nodes of no model
_CPU = "CPUExecutionProvider"
_SHOWN = 5  # nodes that a message names


@dataclass(frozen=True)
class Node:
    """A node on the CPU. ``preferred`` says that the provider's own rules sent it there, ``reason`` why."""

    op: str
    name: str
    reason: str
    preferred: bool

    def __str__(self) -> str:
        return f"{self.op} {self.name!r} ({self.reason})"


@dataclass(frozen=True)
class Placement:
    """How many nodes the provider runs (a fused one counts as one), and the nodes that are left to the CPU."""

    taken: int
    cpu: tuple[Node, ...]

    def share(self, total: int | None = None) -> float:
        """The part of all nodes that the provider runs; ``total`` is how many there were where it fuses them."""
        nodes = total if total is not None else self.taken + len(self.cpu)
        return max(0.0, 1 - len(self.cpu) / nodes) if self.taken and nodes else 0.0


def placement(lines: Iterable[str], provider: str) -> Placement:
    """Reads the log of a session's creation, at the verbose level; ``provider`` is ONNX Runtime's name of it."""
    placed: dict[str, list[tuple[str, str]]] = {}
    counted: Counter[str] = Counter()
    preferred: dict[str, str] = {}
    lacking: dict[tuple[str, str], str] = {}
    current = ""
    for line in lines:
        if heading := _HEADING.search(line):
            current = heading[1]
            counted[current] = int(heading[2])
            placed.setdefault(current, [])
        elif (node := _NODE.search(line)) and current:
            placed[current].append((node[1], node[2]))
        elif rule := _PREFERRED.search(line):
            preferred[rule[1].strip()] = rule[2].strip()
        elif kernel := _NO_KERNEL.search(line):
            lacking[kernel[2], kernel[3].strip()] = kernel[1]
    copies = sum(op in _COPIES for op, _ in placed.get(provider, []))
    nodes = []
    for op, name in placed.get(_CPU, []) if provider != _CPU else []:
        if op not in _COPIES:
            reason = preferred.get(name) or lacking.get((op, name)) or f"{provider} does not take it"
            nodes.append(Node(op, name, reason, name in preferred))
    if provider != _CPU and counted[_CPU] and not placed[_CPU]:  # all of them, which the log does not name
        nodes = [Node("every node", "", f"{provider} takes none", False)] * counted[_CPU]
    return Placement(counted[provider] - copies, tuple(nodes))


def shortfall(found: Placement, provider: str, minimum: float | None, total: int | None = None) -> str:
    """Why a placement is not good enough, in one line; empty where it is.

    Without a minimum no node may be on the CPU but those that the provider's own rules send there.
    """
    nodes = total if total is not None else found.taken + len(found.cpu)
    if minimum is None:
        wrong = [node for node in found.cpu if not node.preferred]
        if not wrong:
            return ""
        what = f"{len(wrong)} of {nodes} nodes would run on the CPU instead of {provider}"
        do = "; engine.min_placement, the least share of nodes, allows it"
    else:
        wrong = list(found.cpu)
        if found.share(total) >= minimum:
            return ""
        what = f"{provider} runs {found.share(total):.1%} of {nodes} nodes, engine.min_placement is {minimum:.1%}"
        do = ""
    named = ", ".join(map(str, dict.fromkeys(wrong[:_SHOWN])))
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return f"{what}: {named}{more}{do}"
