"""For whole networks, traced without a GPU, the real library writes exactly the keys that the trace predicts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from handlers.shapes import Shape
from warmup.trace.result import PlanTrace
from warmup.trace.torch import trace_torch

pytestmark = pytest.mark.miopen
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def conv(into: int, out: int, size: int, stride: int = 1, **more) -> nn.Sequential:
    padding = more.get("dilation", 1) * (size // 2)
    convolution = nn.Conv2d(into, out, size, stride, padding, bias=False, **more)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU())


class Bottleneck(nn.Module):
    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(into, width, 1), conv(width, width, 3, stride), conv(width, 4 * width, 1))
        same = stride == 1 and into == 4 * width
        self.shortcut = nn.Identity() if same else conv(into, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.shortcut(x)


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    into = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for at in range(blocks):
            layers.append(Bottleneck(into, width, stride if at == 0 else 1))
            into = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000))


def mobilenet() -> nn.Module:
    """Depthwise and pointwise convolutions, as in MobileNet v1."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2)]
    into = 32
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (512, 2), (512, 1)):
        layers += [conv(into, into, 3, stride, groups=into), conv(into, out, 1)]
        into = out
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Skips, transposed convolutions on the way up, and dilated ones at the bottom."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64)
        self.down = nn.ModuleList([conv(into, out, 3) for into, out in zip((3, *widths), widths, strict=False)])
        self.bottom = nn.Sequential(conv(64, 64, 3, dilation=2), conv(64, 64, 3, dilation=4))
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 4, 2, 1)])
        self.join = nn.ModuleList([conv(64, 32, 3), conv(32, 16, 3)])
        self.head = nn.ConvTranspose2d(16, 1, 3, 2, 1, output_padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for at, step in enumerate(self.down):
            x = step(x if at == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        x = self.bottom(x)
        for at, (up, join) in enumerate(zip(self.up, self.join, strict=True)):
            x = join(torch.cat((up(x), kept[1 - at]), 1))
        return self.head(x)


def volumes() -> nn.Module:
    """A 3-D network: uneven filters, a stride in depth, groups, a transposed convolution."""
    return nn.Sequential(
        nn.Conv3d(1, 16, (3, 5, 5), (1, 2, 2), (1, 2, 2)),
        nn.ReLU(),
        nn.Conv3d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Conv3d(32, 32, 3, 1, 1, groups=4),
        nn.ReLU(),
        nn.ConvTranspose3d(32, 8, 2, 2),
    )


NETWORKS = {
    "resnet50": (resnet50, ((2, 3, 224, 224), (1, 3, 160, 192))),
    "mobilenet": (mobilenet, ((1, 3, 128, 128), (3, 3, 96, 96))),
    "unet": (UNet, ((1, 3, 64, 64), (2, 3, 48, 80))),
    "volumes": (volumes, ((1, 1, 16, 64, 64),)),
}


def traced(network: str, precision: str, last: bool) -> PlanTrace:
    build, sizes = NETWORKS[network]
    torch.manual_seed(0)
    module = build().to(DTYPES[precision]).eval()
    memory = {4: torch.channels_last, 5: torch.channels_last_3d}[len(sizes[0])] if last else torch.contiguous_format

    def forward(x: torch.Tensor) -> torch.Tensor:
        return module(x.to(memory_format=memory))

    if last:
        module = module.to(memory_format=memory)
    shapes = [Shape.parse(f"x={'x'.join(map(str, dims))}:{precision}") for dims in sizes]
    return trace_torch(forward, module, shapes, nhwc=last)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_library_writes_the_keys_that_the_trace_predicts(standin, make_home, network, precision, last):
    trace = traced(network, precision, last)
    predicted = set(trace.keys.values())
    home = make_home("MI300X", arch="gfx942:sramecc+:xnack-", cu=304)
    rule = {"MIOPEN_FIND_CONV_INSUFFICIENT_WORKSPACE_ALLOW_FINDDB_UPDATE": "1"}
    answers = standin.find(home, trace.problems, **rule)
    assert [answer for answer in answers if "error" in answer] == []
    assert home.keys() == predicted
    layouts = {"NHWC-NHWC-NHWC", "NDHWC-NDHWC-NDHWC"} if last else {"NCHW", "NCDHW"}
    assert any(f"-0-{layout}-{precision.upper()}-" in key for key in predicted for layout in layouts)
    assert len(predicted) >= {"resnet50": 40, "mobilenet": 20, "unet": 18, "volumes": 4}[network]
