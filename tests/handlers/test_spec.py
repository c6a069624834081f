from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from handlers.engine_spec import EngineSpec
from handlers.errors import ModelError
from handlers.spec import AxisRange, ModelSpec, TensorSpec, load_spec

Describe = Callable[..., ModelSpec]
DOCUMENT: dict[str, Any] = {
    "name": "text",
    "engine": {"kind": "onnx", "source": "net.onnx"},
    "inputs": [{"name": "x", "dtype": "float32", "dims": ["batch", 3, "height", "width"]}],
    "shapes": {
        "grid": {"batch": [1, 2], "height": {"from": 32, "to": 96, "step": 32}, "width": [32]},
        "pad": ["width"],
    },
}


def read(folder: Path, document: Any) -> ModelSpec:
    (folder / "model.yaml").write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return load_spec(folder)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with one key set, its place given with dots."""
    document = yaml.safe_load(yaml.safe_dump(DOCUMENT))
    *parents, last = path.split(".")
    place = document
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
    place[last] = value
    return document


def test_reads_a_description_and_fills_in_the_rest(tmp_path: Path) -> None:
    spec = read(tmp_path, DOCUMENT)
    assert (spec.version, spec.handler, spec.cold, spec.ready_coverage) == ("1", "tensors", "run", 1.0)
    assert spec.inputs[0].dtype == "fp32"
    assert spec.engine.providers == ("cpu",)
    assert spec.batched


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("nme", 1, "nme: unknown key; allowed here: batching, cold, engine, handler"),
        ("engine.sauce", 1, "engine.sauce: unknown key; allowed here: arguments, channels_last"),
        ("batching.delay", 1, "batching.delay: unknown key; allowed here: max_delay_ms, queue"),
        ("inputs.0.shape", 1, "inputs.0.shape: unknown key; allowed here: dims, dtype, name"),
        ("shapes.grid.height", {"from": 1, "to": 2, "stop": 1}, "stop"),
        ("cold", "maybe", "cold: .*'pad', 'run' or 'reject'.*found 'maybe'"),
        ("engine.kind", "tf", "engine.kind: .*'onnx'"),
        ("engine.source", "net.pt", "engine.source: 'net.pt' may hold a pickle"),
        ("engine.weights", "net.bin", "engine.weights: 'net.bin' may hold a pickle"),
        ("engine.precision", "int4", "engine.precision"),
        ("engine.channels_last", "last", "engine.channels_last: expected true, false or auto .found 'last'"),
        ("engine.channels_last", 1, "engine.channels_last: expected true, false or auto"),
        ("engine.tf32", 1, "engine.tf32: .*valid boolean"),
        ("learn", "yes", "learn: .*valid boolean"),
        ("engine.providers", ["tpu"], "engine.providers.0"),
        ("engine.threads", -1, "engine.threads: .*greater than or equal to 0"),
        ("inputs.0.dtype", "fp12", "inputs.0.dtype: unknown dtype 'fp12'"),
        ("inputs.0.dims", [0, 3], "inputs.0.dims"),
        ("inputs", [], "inputs"),
        ("name", "a/b", "name"),
        ("shapes.weights", {"batch": {1: float("inf")}}, "shapes.weights.batch.1: .*finite"),
        ("shapes.weights", {"batch": {1: float("nan")}}, "shapes.weights.batch.1"),
        ("shapes.weights", {"batch": {4: 2}}, r"shapes: weights.batch names \[4\], which grid.batch does not have"),
        ("shapes.weights", {"height": {48: 2}}, r"shapes: weights.height names \[48\]"),
        ("shapes", {"list": [{"shape": "x=1x3x8x8:fp32", "weight": float("inf")}]}, "shapes.list.0.weight: .*finite"),
        ("shapes", {"list": ["x=1x3x8x8:fp32"], "weights": {"batch": {1: 2}}}, "shapes: weights are of .* a grid"),
        ("shapes.grid.batch", [True], "shapes.grid.batch.*expected a number"),
        ("engine.threads", True, "engine.threads: expected a number"),
        ("limits.timeout_s", True, "limits.timeout_s: expected a number"),
        (
            "engine",
            {"kind": "python", "source": "a.py:A", "providers": ["cpu"]},
            "engine: providers: not of kind python",
        ),
        ("engine", {"kind": "torch", "source": "a.pt2", "options": {}}, "engine: options: not of kind torch"),
        (
            "engine.tf32",
            True,
            "engine: tf32: not of kind onnx, which has kind, min_placement, options, precision, providers",
        ),
        ("inputs", 2 * DOCUMENT["inputs"], "inputs: more than one is named x"),
        ("outputs", 2 * DOCUMENT["inputs"], "outputs: more than one is named x"),
        ("batching.queue", 0, "batching.queue"),
        ("limits.timeout_s", 0, "limits.timeout_s"),
        ("shapes.list", ["x=1:fp32"], "shapes: exactly one of grid, list, learned is needed, found grid, list"),
        ("shapes", {}, "exactly one of .* found none"),
        ("shapes", {"list": ["x=1:fp32", "x=01:fp32"]}, "shapes: list has x=1:fp32 twice"),
        ("shapes", {"list": ["x=1"]}, "shapes.list.0.shape: 'x=1' is not NAME"),
        ("shapes", {"list": [{"shape": "x=1:fp32", "weight": 0}]}, "shapes.list.0.weight"),
        ("shapes.grid.depth", [1], r"shapes.grid names \['depth'\], but the inputs have the axes"),
        ("shapes.pad", ["depth"], r"shapes.pad names \['depth'\]"),
        ("shapes.weights", {"depth": {1: 2}}, r"shapes.weights names \['depth'\]"),
        ("shapes.grid", {"batch": [1], "height": [32]}, r"shapes.grid gives no sizes for \['width'\]"),
        ("shapes.grid.height", {"from": 9, "to": 3, "step": 1}, r"'to' \(3\) is below 'from' \(9\)"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path: Path, path: str, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        read(tmp_path, changed(path, value))
    assert all(line.startswith(f"{tmp_path / 'model.yaml'}: ") for line in str(raised.value).splitlines())


def test_padding_as_policy_needs_axes(tmp_path: Path) -> None:
    document = changed("cold", "pad")
    assert read(tmp_path, document).cold == "pad"
    document["shapes"]["pad"] = []
    with pytest.raises(ModelError, match="cold: pad needs shapes.pad"):
        read(tmp_path, document)


def test_every_wrong_key_has_a_line(tmp_path: Path) -> None:
    document = changed("engine.kind", "tf") | {"colour": "red"}
    with pytest.raises(ModelError) as raised:
        read(tmp_path, document)
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("- a", "expected a mapping at the top, found list"),
        ("", "expected a mapping at the top, found NoneType"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_what_is_no_mapping(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "x" * 10_000),
        ("name", "NUMBER"),
        ("engine.threads", "NUMBER"),
        ("engine.graph_memory", "9" * 4000 + "GB"),
        ("engine." + "x" * 10_000, 1),
        ("engine.source", "x" * 10_000 + ".pt"),
        ("shapes", {"list": ["x" * 10_000]}),
        ("shapes", {"list": ["x=" + "9" * 5000 + ":fp32"]}),
    ],
    ids=range(8),
)
def test_long_values_are_told_in_short(tmp_path: Path, path: str, value: Any) -> None:
    place = path[:20].rstrip("x")
    with pytest.raises(ModelError, match=f"model.yaml: {place}") as raised:
        # hexadecimal numbers may be of any length
        read(tmp_path, yaml.safe_dump(changed(path, value)).replace("NUMBER", hex(1 << 20_000)))
    assert len(str(raised.value)) < 1000


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ModelError, match=r"model\.yaml: not YAML"):
        load_spec(tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.yaml: No such file"):
        load_spec(tmp_path)


def test_a_range_includes_its_ends() -> None:
    assert AxisRange.model_validate({"from": 320, "to": 640, "step": 160}).values() == (320, 480, 640)
    assert AxisRange.model_validate({"from": 3, "to": 8, "step": 4}).values() == (3, 7)


def test_sizes_of_dims() -> None:
    tensor = TensorSpec(name="x", dtype="fp32", dims=("batch", 3, "side", "side"))
    assert tensor.sizes((2, 3, 8, 8)) == {"batch": 2, "side": 8}
    assert tensor.sizes((2, 3, 8, 9)) is None
    assert tensor.sizes((2, 4, 8, 8)) is None
    assert tensor.sizes((2, 3, 8)) is None
    assert str(tensor.shape({"batch": 1, "side": 5})) == "x=1x3x5x5:fp32"


def test_only_a_leading_batch_axis_joins_requests(describe: Describe) -> None:
    engine = {"kind": "onnx", "source": "net.onnx"}
    assert describe(engine).batched
    inputs = [{"name": "x", "dtype": "fp32", "dims": ["height", "batch"]}]
    assert not describe(engine, inputs=inputs, shapes={"list": ["x=1x1:fp32"]}).batched


def test_normalisations_are_folded_only_where_outputs_are_checked() -> None:
    torch_engine = {"kind": "torch", "source": "net.py:Net", "weights": "random:0", "fold_batchnorm": True}
    assert EngineSpec.model_validate(torch_engine | {"execution": "graph"}).captures
    with pytest.raises(ValidationError, match="fold_batchnorm needs execution graph"):
        EngineSpec.model_validate(torch_engine | {"execution": "compile"})
    fusing = torch_engine | {"fold_batchnorm": False, "fuse_activations": True}
    assert EngineSpec.model_validate(fusing | {"execution": "graph"}).rewritten
    multiplying = torch_engine | {"fold_batchnorm": False, "pointwise_as_matmul": True}
    last = {"channels_last": True}
    assert EngineSpec.model_validate(multiplying | last | {"execution": "compile+graph"}).rewritten
    with pytest.raises(ValidationError, match="pointwise_as_matmul needs channels_last: true"):
        EngineSpec.model_validate(multiplying | {"execution": "graph", "channels_last": "auto"})
    assert EngineSpec.model_validate(torch_engine | {"execution": "graph", "channels_last": "auto"}).layouts == (
        False,
        True,
    )
    with pytest.raises(ValidationError, match="channels_last: auto needs execution graph"):
        EngineSpec.model_validate(torch_engine | {"execution": "compile+graph", "channels_last": "auto"})
    with pytest.raises(ValidationError, match="dynamic_shapes needs execution compile"):
        EngineSpec.model_validate(multiplying | last | {"execution": "graph", "dynamic_shapes": True})
    with pytest.raises(ValidationError, match="pointwise_as_matmul needs execution graph"):
        EngineSpec.model_validate(multiplying | {"execution": "eager"})
    with pytest.raises(ValidationError, match="net.pt2 is no module of layers"):
        EngineSpec.model_validate({"kind": "torch", "source": "net.pt2", "fold_batchnorm": True, "execution": "graph"})
    with pytest.raises(ValidationError, match="fold_batchnorm: not of kind onnx"):
        EngineSpec.model_validate({"kind": "onnx", "source": "net.onnx", "fold_batchnorm": True})
    with pytest.raises(ValidationError, match="fuse_activations needs execution graph"):
        EngineSpec.model_validate(fusing | {"execution": "compile+graph"})


def test_a_plan_that_is_proven_as_a_whole_learns_nothing() -> None:
    document = {
        "name": "m",
        "engine": {"kind": "torch", "source": "n.py:N", "weights": "random:0", "execution": "compile"},
        "inputs": [{"name": "x", "dtype": "fp32", "dims": ["batch", 3]}],
        "outputs": [{"name": "y", "dtype": "fp32", "dims": ["batch", 3]}],
        "shapes": {"grid": {"batch": [1, 2]}},
        "learn": True,
    }
    assert ModelSpec.model_validate(document).learn
    document["engine"] = {**document["engine"], "dynamic_shapes": True}
    with pytest.raises(ValidationError, match="learn: true needs engine.dynamic_shapes: false"):
        ModelSpec.model_validate(document)
