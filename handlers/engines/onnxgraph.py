"""ONNX graphs as files and bytes: one with other dims, and the smallest one."""

from __future__ import annotations

from pathlib import Path

from handlers.shapes import Shape

# One Relu from x:[n] to y:[n], opset 13, in ONNX's protobuf encoding (onnx/onnx.proto): enough for a provider to say
# whether its device and its options work, and without dims that could be compiled for.
ONE_NODE = (
    b'\x08\x07:5\n\x0c\n\x01x\x12\x01y"\x04Relu\x12\x01gZ\x10\n\x01x\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01n'
    b"b\x10\n\x01y\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01nB\x04\n\x00\x10\r"
)


def with_dims(path: Path, shape: Shape) -> bytes:
    """The graph with these dims in its inputs, and without what it says of dims elsewhere; weights in files of their
    own stay there."""
    import onnx  # takes half a second, and few graphs have to be taken apart

    model = onnx.load(path, load_external_data=False)
    for value in model.graph.input:
        if value.name in {tensor.name for tensor in shape}:  # old graphs list their weights among the inputs
            sizes = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in shape[value.name].dims]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=sizes))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model.SerializeToString()
