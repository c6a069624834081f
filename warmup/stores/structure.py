"""What an ONNX graph computes, whatever its nodes and tensors are called and in whichever order they are listed.

ONNX Runtime writes the graph that it has optimised with names and in an order that differ from run to run. Two such
files are one entry of a store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto, TensorProto


def structure(path: Path) -> bytes | None:
    """A digest of an ONNX file's graph; None for what is none, or has its weights elsewhere. Runs nothing."""
    try:
        model = onnx.load_model(path, load_external_data=False)
    except DecodeError:
        return None
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer):
        return None
    return _digest(model)


def _digest(model: ModelProto) -> bytes:
    graph = model.graph
    known = {"": b""}  # by name: a digest of what a tensor is
    for tensor in graph.initializer:
        known[tensor.name] = _hash(b"weights", _tensor(tensor))
    for value in graph.input:
        known.setdefault(value.name, _hash(b"input", value.SerializeToString(deterministic=True)))
    nodes = []
    for node in graph.node:  # every tensor is made before it is used, says the format
        one = _hash(b"node", _node(node), *(known.get(name, name.encode()) for name in node.input))
        known |= {name: _hash(one, str(index).encode()) for index, name in enumerate(node.output) if name}
        nodes.append(one)
    outputs = [_hash(value.SerializeToString(deterministic=True), known.get(value.name, b"")) for value in graph.output]
    rest = ModelProto()
    rest.CopyFrom(model)
    rest.ClearField("graph")
    return _hash(rest.SerializeToString(deterministic=True), *sorted(nodes), b"outputs", *outputs)


def _tensor(tensor: TensorProto) -> bytes:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.ClearField("name")
    return copy.SerializeToString(deterministic=True)


def _node(node: NodeProto) -> bytes:
    """Its operator and attributes, without its name and its tensors'."""
    ordered = sorted(node.attribute, key=lambda attribute: attribute.name)
    attributes = [attribute.SerializeToString(deterministic=True) for attribute in ordered]
    return _hash(node.op_type.encode(), node.domain.encode(), node.overload.encode(), *attributes)


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(_framed(parts))).digest()


def _framed(parts: Iterable[bytes]) -> Iterable[bytes]:
    for part in parts:
        yield len(part).to_bytes(8, "little")
        yield part
