from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.shapes import Shape
from warmup.trace.onnx import trace_onnx
from warmup.trace.result import TraceError

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def save(
    path: Path, nodes, weights: dict[str, tuple[int, ...]], dims, *, dtype: type = np.float32, ir=8, constants=()
) -> Path:
    """A model with one input x (names in ``dims`` are symbolic) and one output y."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", element, dims)],
        [helper.make_tensor_value_info("y", element, None)],
        [*(numpy_helper.from_array(np.full(d, 0.5, dtype), name) for name, d in weights.items()), *constants],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def keys(path: Path, *shapes: str, **options) -> list[str]:
    return list(trace_onnx(path, [Shape.parse(shape) for shape in shapes], **options).keys.values())


def conv(op: str = "Conv", **attributes) -> onnx.NodeProto:
    domain = "com.microsoft" if op == "FusedConv" else ""
    return helper.make_node(op, ["x", "w"], ["y"], name="conv", domain=domain, **attributes)


def one(tmp_path: Path, node: onnx.NodeProto, w: tuple[int, ...], x: str, **options) -> list[str]:
    """The keys of a model of one node, with symbolic dims, at the dims ``x``."""
    dims = [f"d{at}" if at != 1 else int(size) for at, size in enumerate(x.split("x"))]
    return keys(save(tmp_path / "model.onnx", [node], {"w": w}, dims, **options), f"x={x}:fp32")


def test_plain_and_grouped(tmp_path):
    assert one(tmp_path, conv(pads=[3, 3, 3, 3], strides=[2, 2]), (64, 3, 7, 7), "16x3x224x224") == [
        "3-224-224-7x7-64-112-112-16-3x3-2x2-1x1-0-NCHW-FP32-F"
    ]
    assert one(tmp_path, conv(group=8, pads=[1, 1, 1, 1]), (8, 1, 3, 3), "2x8x10x12") == [
        "8-10-12-3x3-8-10-12-2-1x1-1x1-1x1-0-NCHW-FP32-F_g8"
    ]


@pytest.mark.parametrize(
    ("attributes", "pads", "out"),
    [
        ({"auto_pad": "SAME_UPPER"}, "2x2", "11-11"),  # needs 0 and 1; begin grows by one stride
        ({"auto_pad": "SAME_LOWER"}, "1x1", "10-10"),  # needs 1 and 0; both sides take 1
        ({"auto_pad": "VALID"}, "0x0", "9-9"),
        ({"pads": [0, 1, 3, 0]}, "4x1", "13-10"),
    ],
)
def test_unequal_pads_become_equal_ones(tmp_path, attributes, pads, out):
    assert one(tmp_path, conv(strides=[2, 2], **attributes), (16, 8, 3, 3), "1x8x20x20") == [
        f"8-20-20-3x3-16-{out}-1-{pads}-2x2-1x1-0-NCHW-FP32-F"
    ]


def test_one_dimension_becomes_width_one(tmp_path):
    assert one(tmp_path, conv(pads=[2, 2]), (32, 16, 5), "2x16x100") == [
        "16-100-1-5x1-32-100-1-2-2x0-1x1-1x1-0-NCHW-FP32-F"
    ]


def test_a_transposed_one_becomes_height_one(tmp_path):
    node = conv("ConvTranspose", strides=[2], pads=[1, 1])
    assert one(tmp_path, node, (8, 4, 4), "2x8x50") == ["8-1-50-1x4-4-1-100-2-0x1-1x2-1x1-0-NCHW-FP32-B"]


def test_three_dimensions(tmp_path):
    assert one(tmp_path, conv(pads=[1, 2, 1, 1, 2, 1], strides=[1, 2, 1]), (32, 16, 3, 5, 3), "2x16x8x28x30") == [
        "16-8-28-30-3x5x3-32-8-14-30-2-1x2x1-1x2x1-1x1x1-0-NCDHW-FP32-F"
    ]


@pytest.mark.parametrize(
    ("attributes", "pad", "out"),
    [
        ({"pads": [1, 1, 1, 1]}, "1x1", "8-8"),
        ({"pads": [1, 1, 1, 1], "output_padding": [1, 1]}, "1x1", "9-9"),
        ({"output_shape": [9, 9]}, "1x1", "9-9"),  # of 10, so one is cut: from the begin, as auto_pad is not SAME_UPPER
        ({"output_shape": [9, 9], "auto_pad": "SAME_UPPER"}, "0x0", "9-9"),
        ({"auto_pad": "SAME_UPPER"}, "1x1", "8-8"),
    ],
)
def test_transposed_convolutions(tmp_path, attributes, pad, out):
    node = conv("ConvTranspose", strides=[2, 2], **attributes)
    assert one(tmp_path, node, (8, 6, 4, 4), "1x8x4x4") == [f"8-4-4-4x4-6-{out}-1-{pad}-2x2-1x1-0-NCHW-FP32-B"]
    inferred = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "model.onnx"))
    assert inferred.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 6


def test_a_transposed_convolution_with_gaps_ends_with_its_last_filter(tmp_path):
    node = conv("ConvTranspose", strides=[3, 3], auto_pad="SAME_LOWER", group=2)
    assert one(tmp_path, node, (4, 4, 2, 4), "2x4x8x7") == ["4-8-7-2x4-8-23-21-2-0x1-3x3-1x1-0-NCHW-FP32-B_g2"]


def test_a_fused_convolution_of_an_optimised_file(tmp_path):
    node = conv("FusedConv", activation="Relu", pads=[1, 1, 1, 1])
    assert one(tmp_path, node, (4, 3, 3, 3), "1x3x8x8") == ["3-8-8-3x3-4-8-8-1-1x1-1x1-1x1-0-NCHW-FP32-F"]


def pad_then_conv(path: Path, dtype: type = np.float32) -> Path:
    pads = numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64), "pads")
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"], mode="constant"),
        helper.make_node("Conv", ["padded", "w"], ["c"], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"]),
        helper.make_node("Conv", ["n", "v"], ["y"]),
    ]
    return save(
        path,
        nodes,
        {"w": (8, 3, 3, 3), "s": (8,), "v": (8, 8, 1, 1)},
        ["n", 3, "h", "w_"],
        dtype=dtype,
        constants=[pads],
    )


@pytest.mark.parametrize(("dtype", "short"), [(np.float32, "fp32"), (np.float16, "fp16")])
def test_a_pad_before_a_convolution_is_fused_into_it(tmp_path, dtype, short):
    path = pad_then_conv(tmp_path / "model.onnx", dtype)
    assert keys(path, f"x=1x3x20x20:{short}") == [
        f"3-20-20-3x3-8-11-11-1-2x2-2x2-1x1-0-NCHW-{short.upper()}-F",
        f"8-10-10-1x1-8-10-10-1-0x0-1x1-1x1-0-NCHW-{short.upper()}-F",
    ]


def test_a_precision_that_the_provider_converts_to(tmp_path):
    path = save(tmp_path / "model.onnx", [conv()], {"w": (4, 3, 1, 1)}, [1, 3, "h", "h"])
    assert keys(path, "x=1x3x8x8:fp32", dtype="FP16") == ["3-8-8-1x1-4-8-8-1-0x0-1x1-1x1-0-NCHW-FP16-F"]


def test_dims_that_follow_from_other_dims_through_a_reshape(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "two", "four"], ["hw"]),
        helper.make_node("Div", ["hw", "halves"], ["small"]),
        helper.make_node("Concat", ["head", "small"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(values, np.int64), name)
        for name, values in {"two": [2], "four": [4], "halves": [2, 2], "head": [-1, 12]}.items()
    ]
    path = save(tmp_path / "model.onnx", nodes, {"w": (4, 12, 1, 1)}, ["n", 3, "h", "w_"], constants=constants)
    assert keys(path, "x=2x3x8x12:fp32", "x=1x3x4x4:fp32") == [
        "12-4-6-1x1-4-4-6-2-0x0-1x1-1x1-0-NCHW-FP32-F",
        "12-2-2-1x1-4-2-2-1-0x0-1x1-1x1-0-NCHW-FP32-F",
    ]


def test_dims_that_only_onnx_runtime_can_fold(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["floats"], ["roots"]),
        helper.make_node("Cast", ["roots"], ["target"], to=TensorProto.INT64),
        helper.make_node("Slice", ["target", "two", "three"], ["side"]),
        helper.make_node("Concat", ["head", "side", "side"], ["dims"], axis=0),
        helper.make_node("Reshape", ["x", "dims"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(values, np.int64), name)
        for name, values in {"two": [2], "three": [3], "head": [1, 24]}.items()
    ]
    weights = {"w": (4, 24, 3, 3)}  # large enough to be kept in a file of their own
    path = save(tmp_path / "model.onnx", nodes, weights, ["n", 3, "h", "w_"], constants=constants)
    assert keys(path, "x=1x3x25x8:fp32", "x=1x3x81x8:fp32") == [
        f"24-{side}-{side}-3x3-4-{side - 2}-{side - 2}-1-0x0-1x1-1x1-0-NCHW-FP32-F" for side in (5, 9)
    ]


def test_dims_that_depend_on_values_are_an_error_naming_the_node(tmp_path):
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Cast", ["where"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["f", "axes"], ["u"]),
        helper.make_node("Conv", ["u", "w"], ["y"], name="late"),
    ]
    axes = numpy_helper.from_array(np.array([0, 1], np.int64), "axes")
    path = save(tmp_path / "model.onnx", nodes, {"w": (4, 1, 1, 1)}, ["n", 3, "h", "w_"], constants=[axes])
    with pytest.raises(TraceError, match="node 'late': the dims of 'u' are not known"):
        keys(path, "x=1x3x4x4:fp32")


def test_a_type_that_onnx_runtime_cannot_run_is_an_error(tmp_path):
    path = save(tmp_path / "model.onnx", [conv()], {"w": (4, 3, 1, 1)}, [1, 3, 8, 8], dtype=np.float64)
    with pytest.raises(TraceError, match="NOT_IMPLEMENTED"):
        keys(path, "x=1x3x8x8:fp64")


def test_inputs_that_the_model_does_not_have(tmp_path):
    path = save(tmp_path / "model.onnx", [conv()], {"w": (4, 3, 1, 1)}, [1, 3, 8, 8])
    with pytest.raises(TraceError, match=r"inputs \['y'\], the model takes \['x'\]"):
        keys(path, "y=1x3x8x8:fp32")
    with pytest.raises(TraceError, match="has 2 dims, the model takes 4"):
        keys(path, "x=1x3:fp32")


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a protobuf" * 100)
    with pytest.raises(TraceError, match=r"model\.onnx"):
        keys(path, "x=1x3x8x8:fp32")


# Graphs of one convolution made up at random, each with the key that ONNX Runtime's ROCm provider (1.22) asked the real
# MIOpen (3.4.0) for on a stand-in device.
PROVIDER_KEYS = json.loads((Path(__file__).parent / "provider_keys.json").read_text())


def test_random_convolutions_ask_for_the_keys_that_the_real_provider_asked_for(tmp_path):
    assert len(PROVIDER_KEYS) == 150
    for case in PROVIDER_KEYS:
        nodes, constants = [], []
        if "pad" in case:
            nodes.append(helper.make_node("Pad", ["x", "pads"], ["padded"], mode=case["pad"]["mode"]))
            constants.append(numpy_helper.from_array(np.array(case["pad"]["pads"], np.int64), "pads"))
        nodes.append(
            helper.make_node(case["op"], [*(nodes[-1].output if nodes else "x"), "w"], ["y"], **case["attributes"])
        )
        dtype = {"fp32": np.float32, "fp16": np.float16}[case["dtype"]]
        path = save(tmp_path / "case.onnx", nodes, {"w": case["w"]}, case["x"], dtype=dtype, constants=constants)
        found = keys(path, f"x={'x'.join(map(str, case['x']))}:{case['dtype']}")
        assert found == [case["key"]], case


# How many find-db keys ONNX Runtime's ROCm provider (1.22) made MIOpen 3.4.0 write, on a stand-in device.
@pytest.mark.parametrize(
    ("name", "entry", "written"),
    [
        ("squeezenet", "data_0", 18),
        ("resnet50", "gpu_0/data_0", 23),
        ("densenet121", "data_0", 67),
        ("shufflenet", "gpu_0/data_0", 14),
        ("inception_v2", "data_0", 38),
    ],
)
def test_as_many_keys_as_the_provider_wrote(name, entry, written):
    assert len(keys(LIGHT / f"light_{name}.onnx", f"{entry}=1x3x224x224:fp32")) == written


def test_a_text_detector_at_three_shapes():
    package = importlib.util.find_spec("rapidocr")
    if package is None:
        pytest.skip("the package rapidocr, which ships the model, is not installed")
    path = Path(package.submodule_search_locations[0]) / "models/PP-OCRv6_det_small.onnx"  # type: ignore[index]
    shapes = [Shape.parse(f"x={dims}:fp32") for dims in ("1x3x320x320", "1x3x320x480", "2x3x320x320")]
    trace = trace_onnx(path, shapes)
    assert [(t.executions, len(t.calls)) for t in trace] == [(85, 49)] * 3
    assert 49 < len(trace.problems) < trace.total == 3 * 49
