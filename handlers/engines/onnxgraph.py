"""ONNX graphs as files and bytes: what identifies one, one with other dims, and the smallest one.

The package ``onnx`` takes half a second to import, so that is done only where a graph has to be taken apart.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from handlers.shapes import Shape
from handlers.sources import file_digest

# One Relu from x:[n] to y:[n], opset 13, in ONNX's protobuf encoding (onnx/onnx.proto): enough for a provider to say
# whether its device and its options work, and without dims that could be compiled for.
ONE_NODE = (
    b'\x08\x07:5\n\x0c\n\x01x\x12\x01y"\x04Relu\x12\x01gZ\x10\n\x01x\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01n'
    b"b\x10\n\x01y\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01nB\x04\n\x00\x10\r"
)
_LOCATION = b"location"  # onnx.proto, TensorProto.external_data: the key that names a file


def graph_digest(path: Path) -> str:
    """The SHA-256 (hex) of a graph, and of the files that its weights are in where they are not in it."""
    digest = file_digest(path)
    if _LOCATION not in path.read_bytes():
        return digest
    import onnx
    from onnx.external_data_helper import uses_external_data

    model = onnx.load(path, load_external_data=False)
    files = {
        entry.value
        for tensor in model.graph.initializer
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    if not files:
        return digest
    facts = [digest, *(file_digest(path.parent / name) for name in sorted(files))]
    return hashlib.sha256(" ".join(facts).encode()).hexdigest()


def with_dims(path: Path, shape: Shape) -> bytes:
    """The graph with these dims in its inputs, and without what it says of dims elsewhere; weights in files of their
    own stay there."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    for value in model.graph.input:
        if value.name in {tensor.name for tensor in shape}:  # old graphs list their weights among the inputs
            sizes = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in shape[value.name].dims]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=sizes))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model.SerializeToString()
