from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch._dynamo.utils import counters

from handlers.engines import torch as torch_engine
from handlers.engines.engine import example, open_engine
from handlers.engines.module import build_module
from handlers.engines.torch import TorchEngine, choose_device, to_array, to_tensor
from handlers.errors import InvalidInput, ModelError
from handlers.shapes import Shape
from handlers.spec import ModelSpec

Describe = Callable[..., ModelSpec]
NET = {"kind": "torch", "source": "net.py:Net", "weights": "random:3"}
SHAPE = Shape.parse("x=2x3x8x10:fp32")
CPU = {"torch.device": "cpu"}


def loaded(spec: ModelSpec, folder: Path, options: dict[str, str] = CPU) -> TorchEngine:
    engine = open_engine(spec, folder, options)
    assert isinstance(engine, TorchEngine)
    engine.load()
    return engine


@pytest.fixture
def dynamo_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo is real and has compiled nothing yet, only the code generator is not."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()


def reference(folder: Path, spec: ModelSpec) -> np.ndarray:
    with torch.inference_mode():
        return build_module(spec, folder)(torch.from_numpy(example(SHAPE)["x"])).numpy()


def test_runs_a_class_with_random_weights(describe: Describe, net_folder: Path) -> None:
    spec = describe(NET)
    outputs = loaded(spec, net_folder).run(example(SHAPE))
    assert list(outputs) == ["y"]
    assert np.array_equal(outputs["y"], reference(net_folder, spec))


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone(
    describe: Describe, net_folder: Path
) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, same, other = (build_module(describe(NET | {"weights": f"random:{s}"}), net_folder) for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    weights = [dict(module.named_parameters())["conv.weight"] for module in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_runs_a_class_with_safetensors(describe: Describe, net_folder: Path) -> None:
    spec = describe(NET)
    module = build_module(spec, net_folder)
    module.get_parameter("conv.bias").data.fill_(2.0)
    save_file(module.state_dict(), net_folder / "net.safetensors")
    engine = loaded(describe(NET | {"weights": "net.safetensors"}), net_folder)
    with torch.inference_mode():
        expected = module(torch.from_numpy(example(SHAPE)["x"])).numpy()
    assert np.array_equal(engine.run(example(SHAPE))["y"], expected)


@pytest.fixture
def exported(describe: Describe, net_folder: Path) -> Path:
    """The folder with the net as net.pt2 and net.ts too."""
    module = build_module(describe(NET), net_folder)
    dims = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    sample = (torch.zeros(2, 3, 8, 16),)
    torch.export.save(torch.export.export(module, sample, dynamic_shapes=(dims,)), net_folder / "net.pt2")
    with pytest.warns(DeprecationWarning):
        torch.jit.save(torch.jit.trace(module, sample), net_folder / "net.ts")
    return net_folder


@pytest.mark.parametrize("source", ["net.pt2", "net.ts"])
def test_runs_an_exported_model(describe: Describe, exported: Path, source: str) -> None:
    engine = loaded(describe({"kind": "torch", "source": source}), exported)
    engine.warm(SHAPE)
    found = engine.run(example(SHAPE))["y"]
    np.testing.assert_allclose(found, reference(exported, describe(NET)), rtol=1e-5, atol=1e-6)


def test_an_exported_program_compiles(describe: Describe, exported: Path, dynamo_alone: None) -> None:
    engine = loaded(describe({"kind": "torch", "source": "net.pt2", "execution": "compile"}), exported)
    engine.warm(SHAPE)
    np.testing.assert_allclose(
        engine.run(example(SHAPE))["y"], reference(exported, describe(NET)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 3e-3), ("bf16", 3e-2)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_precisions_and_memory_formats_agree(
    describe: Describe, net_folder: Path, precision: str, tolerance: float, channels_last: bool
) -> None:
    spec = describe(NET | {"precision": precision, "channels_last": channels_last})
    module = build_module(spec, net_folder)
    weight = module.get_parameter("conv.weight")
    assert weight.dtype == torch_engine.DTYPES[precision]
    assert weight.is_contiguous(memory_format=torch.channels_last) == channels_last
    found = loaded(spec, net_folder).run(example(SHAPE))["y"]
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, reference(net_folder, describe(NET)), atol=tolerance)


def test_outputs_by_name_and_as_declared(describe: Describe, net_folder: Path) -> None:
    outputs = [
        {"name": "high", "dtype": "fp64", "dims": ["batch"]},
        {"name": "low", "dtype": "bf16", "dims": ["batch"]},
    ]
    engine = loaded(describe(NET | {"source": "net.py:Two"}, outputs=outputs), net_folder)
    inputs = example(SHAPE)
    found = engine.run(inputs)
    assert list(found) == ["high", "low"]
    assert np.array_equal(found["high"], inputs["x"].max((1, 2, 3)).astype(np.float64))
    assert found["low"].dtype == np.uint16
    low = (found["low"].astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(low, inputs["x"].min((1, 2, 3)), rtol=2**-8)
    assert engine.outputs()[0].name == "high"


def test_forty_shapes_compile_once_each_and_never_again(
    describe: Describe, net_folder: Path, dynamo_alone: None
) -> None:
    """Far more than dynamo's limit of recompiles for one function; dynamo is real, only the code generator is not."""
    engine = loaded(describe(NET | {"execution": "compile"}), net_folder)
    shapes = [Shape.parse(f"x={batch}x3x{8 * side}x8:fp32") for batch in (1, 2) for side in range(1, 21)]
    for shape in shapes:
        engine.warm(shape)
    assert counters["stats"]["unique_graphs"] == 40
    with torch.compiler.set_stance("fail_on_recompile"):
        for shape in shapes:
            assert engine.run(example(shape, seed=1))["y"].shape[2] == shape["x"].dims[2]
    assert counters["stats"]["unique_graphs"] == 40


def test_with_dynamic_shapes_forty_of_them_share_their_code(
    describe: Describe, net_folder: Path, dynamo_alone: None
) -> None:
    spec = describe(NET | {"execution": "compile", "dynamic_shapes": True})
    engine, eager = loaded(spec, net_folder), loaded(describe(NET), net_folder)
    shapes = [Shape.parse(f"x={batch}x3x{8 * side}x8:fp32") for batch in (8, 1) for side in range(20, 0, -1)]
    for shape in shapes:
        engine.warm(shape)
    graphs = counters["stats"]["unique_graphs"]
    assert 1 < graphs <= 8  # a batch of one, a square, ... have code of their own
    with torch.compiler.set_stance("fail_on_recompile"):
        for shape in shapes:
            inputs = example(shape, seed=1)
            np.testing.assert_allclose(engine.run(inputs)["y"], eager.run(inputs)["y"], rtol=1e-5, atol=1e-6)
    engine.run(example(Shape.parse("x=3x3x9x9:fp32")))  # unplanned
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("ask", [(0, 1, 2, 3), (3, 1, 0, 2), (2,)])
def test_with_dynamic_shapes_code_is_made_in_one_order_whatever_is_asked_for_first(
    describe: Describe, net_folder: Path, monkeypatch: pytest.MonkeyPatch, dynamo_alone: None, ask: tuple[int, ...]
) -> None:
    """Else a shape would have other code in a server than in the process that proved it."""
    engine = loaded(describe(NET | {"execution": "compile", "dynamic_shapes": True}), net_folder)
    ran: list[Shape] = []
    run = engine.run

    def noted(inputs: dict[str, np.ndarray]) -> object:
        ran.append(Shape.parse(f"x={'x'.join(map(str, inputs['x'].shape))}:fp32"))
        return run(inputs)

    monkeypatch.setattr(engine, "run", noted)
    shapes = [Shape.parse(f"x={dims}:fp32") for dims in ("4x3x16x16", "1x3x32x16", "2x3x8x8", "1x3x8x8")]
    assert list(engine.expect({shape: index + 1.0 for index, shape in enumerate(shapes)})) == shapes
    for index in ask:
        engine.warm(shapes[index])
    first_runs = list(dict.fromkeys(ran))
    assert first_runs == shapes[: len(first_runs)] and len(first_runs) == max(ask) + 1
    engine.warm(Shape.parse("x=3x3x9x9:fp32"))  # of no plan: after all of it
    assert list(dict.fromkeys(ran))[:4] == shapes


def test_a_shape_that_cannot_run_does_not_keep_others_from_their_code(
    describe: Describe, net_folder: Path, dynamo_alone: None
) -> None:
    engine = loaded(describe(NET | {"execution": "compile", "dynamic_shapes": True}), net_folder)
    bad, good = Shape.parse("x=4x5x16x16:fp32"), Shape.parse("x=1x3x8x8:fp32")
    engine.expect({good: 1.0, bad: 1.0})
    engine.warm(good)
    assert engine.run(example(good))["y"].shape[0] == 1
    with pytest.raises(InvalidInput):
        engine.warm(bad)


def test_more_variants_than_dynamo_allows_by_itself_are_compiled(
    describe: Describe, net_folder: Path, dynamo_alone: None
) -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        engine = loaded(describe(NET | {"execution": "compile", "dynamic_shapes": True}), net_folder)
        for text in ("x=4x3x16x16:fp32", "x=1x3x16x16:fp32", "x=1x3x16x8:fp32", "x=4x3x16x8:fp32"):
            engine.warm(Shape.parse(text))
    assert counters["stats"]["unique_graphs"] > 1


def test_a_shape_that_was_not_warmed_is_not_compiled(describe: Describe, net_folder: Path, dynamo_alone: None) -> None:
    engine = loaded(describe(NET | {"execution": "compile"}), net_folder)
    engine.run(example(SHAPE))
    assert not counters["stats"]


def test_a_server_that_warms_nothing_compiles_in_the_first_request(
    describe: Describe, net_folder: Path, dynamo_alone: None
) -> None:
    spec = describe(NET | {"execution": "compile"})
    engine = loaded(spec, net_folder, CPU | {"torch.first_call": "compile"})
    for _ in range(3):
        assert np.array_equal(engine.run(example(SHAPE))["y"], reference(net_folder, spec))
    assert counters["stats"]["unique_graphs"] == 1
    with pytest.raises(InvalidInput, match="cannot run inputs of shape x=1x5x8x8"):
        engine.run({"x": np.zeros((1, 5, 8, 8), np.float32)})


def test_a_model_that_does_not_compile_whole_is_named(describe: Describe, net_folder: Path, dynamo_alone: None) -> None:
    engine = loaded(describe(NET | {"source": "net.py:Breaks", "execution": "compile"}), net_folder)
    with pytest.raises(ModelError, match="model: engine.execution: cannot be compiled: "):
        engine.warm(SHAPE)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_model_raises_is_told_where_it_is_compiled_too(
    describe: Describe, net_folder: Path, dynamo_alone: None, dynamic: bool
) -> None:
    spec = describe(NET | {"source": "net.py:Refuses", "execution": "compile", "dynamic_shapes": dynamic})
    engine = loaded(spec, net_folder)
    engine.warm(SHAPE)
    with pytest.raises(ValueError, match="thirteen brings bad luck"):
        engine.warm(Shape.parse("x=2x3x8x13:fp32"))
    assert np.array_equal(engine.run(example(SHAPE))["y"], example(SHAPE)["x"])


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_agrees_with_eager(
    describe: Describe, net_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    engine = loaded(describe(NET | {"execution": "compile", "dynamic_shapes": dynamic}), net_folder)
    engine.warm(SHAPE)
    found = engine.run(example(SHAPE))["y"]
    np.testing.assert_allclose(found, reference(net_folder, describe(NET)), rtol=1e-5, atol=1e-6)


def test_read_only_inputs_are_used_where_they_are() -> None:
    body = np.arange(6, dtype=np.float32).tobytes()
    array = np.frombuffer(body, np.float32).reshape(2, 3)
    tensor = to_tensor(array, "fp32")
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.tolist() == array.tolist()


@pytest.mark.parametrize("dtype", list(torch_engine.DTYPES))
def test_every_dtype_passes_through_without_a_copy(dtype: str) -> None:
    array = example(Shape.parse(f"x=2x3:{dtype}"))["x"]
    tensor = to_tensor(array, dtype)
    assert tensor.dtype == torch_engine.DTYPES[dtype]
    back = to_array(tensor)
    assert back.ctypes.data == array.ctypes.data
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_a_strided_input_is_taken() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::-2]
    assert to_tensor(array, "fp32").tolist() == array.tolist()


def test_the_number_of_threads(describe: Describe, net_folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        loaded(describe(NET | {"threads": before + 1}), net_folder)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_inputs_that_the_network_cannot_run_are_the_clients_fault(describe: Describe, net_folder: Path) -> None:
    engine = loaded(describe(NET), net_folder)
    wrong = {"x": np.zeros((1, 5, 8, 8), np.float32)}
    with pytest.raises(InvalidInput, match="model 'model' cannot run inputs of shape x=1x5x8x8"):
        engine.run(wrong)
    engine.warm(SHAPE)


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        (NET, {"outputs": []}, "must name its outputs"),
        (NET | {"execution": "graph"}, {}, "graph needs a GPU"),
        (NET | {"weights": None}, {}, "engine.weights: needed with net.py:Net"),
        (NET | {"weights": "random:x"}, {}, "'random:x' is not random:SEED"),
        (NET | {"weights": "absent.safetensors"}, {}, "absent.safetensors: no such file"),
        (NET | {"weights": "net.py"}, {}, r"net\.py: not safetensors"),
        (NET | {"arguments": {"depth": 3}}, {}, "engine.arguments: .*'depth'"),
        (NET | {"source": "net.py:NotAModule"}, {}, "is not a torch.nn.Module"),
        (NET | {"source": "net.py:Absent"}, {}, "no class 'Absent'"),
        ({"kind": "torch", "source": "net.txt"}, {}, "is not .pt2, .ts or MODULE.py:CLASS"),
        ({"kind": "torch", "source": "bad.pt2"}, {}, r"bad\.pt2: not a torch.export program"),
        ({"kind": "torch", "source": "bad.ts"}, {}, r"bad\.ts: not TorchScript"),
        ({"kind": "torch", "source": "bad.ts", "execution": "compile"}, {}, "TorchScript runs eagerly only"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    describe: Describe, net_folder: Path, engine: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    for name in ("bad.pt2", "bad.ts"):
        (net_folder / name).write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(ModelError, match=message):
        loaded(describe(engine, **changes), net_folder)


def test_weights_of_another_size_are_refused(describe: Describe, net_folder: Path) -> None:
    save_file(build_module(describe(NET), net_folder).state_dict(), net_folder / "net.safetensors")
    with pytest.raises(ModelError, match=r"net\.safetensors: weights do not fit Net"):
        loaded(describe(NET | {"weights": "net.safetensors", "arguments": {"width": 5}}), net_folder)


def test_the_device() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ModelError, match="PyTorch sees [0-9]+ accelerators"):
        choose_device("cuda:99")
    with pytest.raises(ModelError, match="is not auto, cpu, cuda or cuda:N"):
        choose_device("toaster")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_accelerator_agrees_with_the_cpu(describe: Describe, net_folder: Path, precision: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA or HIP device")
    engine = loaded(describe(NET | {"precision": precision, "channels_last": True}), net_folder, {})
    engine.warm(SHAPE)
    np.testing.assert_allclose(engine.run(example(SHAPE))["y"], reference(net_folder, describe(NET)), atol=3e-2)
