from __future__ import annotations

import pytest
import torch
from torch import nn

from handlers.shapes import Shape
from warmup.trace.result import TraceError
from warmup.trace.torch import trace_torch


def keys(module: nn.Module, *shapes: str, **options) -> list[str]:
    """The find-db keys in the order of first use."""
    module = module.eval()
    trace = trace_torch(module, module, [Shape.parse(shape) for shape in shapes], **options)
    return list(trace.keys.values())


def test_a_plain_convolution():
    assert keys(nn.Conv2d(3, 64, 7, stride=2, padding=3), "x=16x3x224x224:fp32") == [
        "3-224-224-7x7-64-112-112-16-3x3-2x2-1x1-0-NCHW-FP32-F"
    ]


def test_precision_of_the_module_is_that_of_the_key():
    module = nn.Conv2d(8, 8, 1).bfloat16()
    assert keys(module, "x=1x8x4x4:bf16") == ["8-4-4-1x1-8-4-4-1-0x0-1x1-1x1-0-NCHW-BF16-F"]


def test_depthwise_and_grouped():
    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1, groups=4))
    assert keys(module, "x=2x8x10x12:fp32") == [
        "8-10-12-3x3-8-10-12-2-1x1-1x1-1x1-0-NCHW-FP32-F_g8",
        "8-10-12-1x1-16-10-12-2-0x0-1x1-1x1-0-NCHW-FP32-F_g4",
    ]


def test_a_transposed_convolution_is_a_backward_problem():
    module = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
    assert keys(module, "x=16x64x28x28:fp32") == ["64-28-28-4x4-32-56-56-16-1x1-2x2-1x1-0-NCHW-FP32-B"]


def test_output_padding_enlarges_the_output():
    module = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)
    assert keys(module, "x=1x4x5x7:fp32") == ["4-5-7-3x3-6-10-14-1-1x1-2x2-1x1-0-NCHW-FP32-B"]


def test_one_dimension_becomes_height_one():
    module = nn.Sequential(nn.Conv1d(4, 8, 5, padding=2, dilation=1), nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1))
    assert keys(module, "x=2x4x50:fp32") == [
        "4-1-50-1x5-8-1-50-2-0x2-1x1-1x1-0-NCHW-FP32-F",
        "8-1-50-1x4-4-1-100-2-0x1-1x2-1x1-0-NCHW-FP32-B",
    ]


def test_three_dimensions_and_an_input_without_batch():
    assert keys(nn.Conv3d(16, 32, (3, 5, 3), padding=(1, 2, 1)), "x=2x16x8x28x30:fp32") == [
        "16-8-28-30-3x5x3-32-8-28-30-2-1x2x1-1x1x1-1x1x1-0-NCDHW-FP32-F"
    ]
    assert keys(nn.Conv2d(3, 4, 3), "x=3x8x8:fp32") == ["3-8-8-3x3-4-6-6-1-0x0-1x1-1x1-0-NCHW-FP32-F"]


@pytest.mark.parametrize(("nhwc", "layout"), [(False, "NCHW"), (True, "NHWC-NHWC-NHWC")])
def test_channels_last_reaches_miopen_only_where_pytorch_is_told_so(nhwc, layout):
    module = nn.Conv2d(64, 64, 3, padding=1).half().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert keys(module, "x=16x64x56x56:fp16", nhwc=nhwc) == [f"64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-{layout}-FP16-F"]


def test_contiguous_tensors_stay_nchw_whatever_is_suggested():
    module = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv1d(4, 4, 1).to(torch.float32))
    assert keys(module[0], "x=1x4x8x8:fp32", nhwc=True) == ["4-8-8-3x3-4-6-6-1-0x0-1x1-1x1-0-NCHW-FP32-F"]
    assert keys(module[1], "x=1x4x8:fp32", nhwc=True) == ["4-1-8-1x1-4-1-8-1-0x0-1x1-1x1-0-NCHW-FP32-F"]


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "FP16"), (torch.bfloat16, "BF16")])
def test_autocast_lowers_convolutions(dtype, name):
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 3, 2, stride=2))
    assert keys(module, "x=1x3x8x8:fp32", autocast=dtype) == [
        f"3-8-8-3x3-8-6-6-1-0x0-1x1-1x1-0-NCHW-{name}-F",
        f"8-6-6-2x2-3-12-12-1-0x0-2x2-1x1-0-NCHW-{name}-B",
    ]


class GpuAutocast(nn.Module):
    """Asks for a GPU's autocast by itself, and runs in inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda"):
            x = self.low(x)
        return self.high(x.float())


def test_a_models_own_autocast_for_gpus_counts_on_a_machine_without_one():
    assert keys(GpuAutocast(), "x=1x3x5x5:fp32") == [
        "3-5-5-1x1-4-5-5-1-0x0-1x1-1x1-0-NCHW-FP16-F",
        "4-5-5-1x1-4-5-5-1-0x0-1x1-1x1-0-NCHW-FP32-F",
    ]


def test_convolutions_that_miopen_never_sees_are_counted_by_reason():
    module = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, dilation=2), nn.Conv2d(4, 4, 1)).double()
    (trace,) = trace_torch(module, module, [Shape.parse("x=1x4x8x8:fp64")])
    assert not trace.calls
    assert sum(trace.elsewhere.values()) == 2 and "float64" in next(iter(trace.elsewhere))
    module = module.float()
    (trace,) = trace_torch(module, module, [Shape.parse("x=1x4x8x8:fp32")])
    assert trace.executions == 1
    assert list(trace.elsewhere) == ["grouped and dilated: PyTorch uses its own kernels"]


def test_equal_problems_are_shared_between_layers_and_shapes():
    layer = nn.Conv2d(4, 4, 3, padding=1)
    module = nn.Sequential(layer, nn.ReLU(inplace=True), nn.BatchNorm2d(4), layer)
    shapes = [Shape.parse(f"x={batch}x4x8x8:fp32") for batch in (1, 2)]
    trace = trace_torch(module.eval(), module, shapes)
    assert [t.executions for t in trace] == [2, 2]
    assert len(trace.problems) == trace.total == 2
    again = trace_torch(module, module, [*shapes, shapes[0]])
    assert (len(again.problems), again.total) == (2, 3)


def test_torchscript_and_exported_programs_give_the_same_keys(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8))
    module.eval()
    batch, height = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("height", min=8, max=512)
    program = torch.export.export(module, (torch.rand(2, 3, 32, 32),), dynamic_shapes=({0: batch, 2: height},))
    torch.export.save(program, tmp_path / "model.pt2")
    exported = torch.export.load(tmp_path / "model.pt2").module()
    scripted = torch.jit.freeze(torch.jit.trace(module, torch.rand(2, 3, 32, 32)), preserved_attrs=[])
    expected = keys(module, "x=1x3x16x32:fp32", "x=4x3x24x32:fp32")
    assert len(expected) == 4
    for other in (exported, scripted):
        trace = trace_torch(other, other, [Shape.parse("x=1x3x16x32:fp32"), Shape.parse("x=4x3x24x32:fp32")])
        assert list(trace.keys.values()) == expected


def test_nothing_of_an_activations_size_is_allocated():
    module = nn.Sequential(nn.Conv2d(3, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU()).eval()
    keys(module, "x=1x3x8x8:fp32")  # what PyTorch imports on first use is not what is measured
    before = torch_memory()
    keys(module, "x=64x3x4096x4096:fp32")  # 1 TiB of activations
    assert torch_memory() - before < 64 << 20


def torch_memory() -> int:
    """The process's peak resident memory in bytes, in which PyTorch's own allocator shows."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class DependsOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) if x.sum().item() > 0 else x


def test_flow_that_depends_on_values_is_an_error_naming_the_shape():
    with pytest.raises(TraceError, match=r"x=1x3x4x4:fp32: .*DataDependent"):
        keys(DependsOnValues(), "x=1x3x4x4:fp32")


def test_a_shape_that_the_model_does_not_take_is_an_error():
    with pytest.raises(TraceError, match=r"x=1x5x4x4:fp32"):
        keys(nn.Conv2d(3, 3, 1), "x=1x5x4x4:fp32")


def test_the_module_keeps_its_own_weights():
    module = nn.Conv2d(3, 3, 1).eval()
    before = module.weight.data_ptr()
    keys(module, "x=1x3x4x4:fp32")
    assert module.weight.data_ptr() == before
    assert module(torch.ones(1, 3, 2, 2)).shape == (1, 3, 2, 2)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(3, 3, 5), "x=1x3x4x4:fp32"),
        (nn.Conv2d(3, 3, 3, dilation=2), "x=1x3x4x4:fp32"),
        (nn.Conv2d(3, 3, 1), "x=1x3x4x4:fp16"),
    ],
)
def test_what_pytorch_would_refuse_is_refused(module, shape):
    with pytest.raises(TraceError, match="shape x=1x3x4x4"):
        keys(module, shape)


def test_an_answer_has_the_dims_and_dtype_of_the_real_one():
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
        nn.Hardswish(inplace=True),
        nn.Flatten(2),
        nn.Conv1d(4, 6, 3, padding=1),
    ).eval()
    seen = {}

    def traced(x: torch.Tensor) -> None:
        y = module(x)
        seen[tuple(x.shape)] = (tuple(y.shape), y.stride(), y.dtype)

    shapes = [(1, 3, 8, 12), (2, 3, 16, 8), (1, 3, 8, 12)]
    trace_torch(traced, module, [Shape.parse(f"x={'x'.join(map(str, dims))}:fp32") for dims in shapes])
    for dims in shapes:
        real = module(torch.zeros(dims))
        assert seen[dims] == (tuple(real.shape), real.stride(), real.dtype)
