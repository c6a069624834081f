"""The convolutions that a PyTorch model hands to MIOpen, seen by running it on fake tensors.

Fake tensors have dims, strides and dtypes but no data, so nothing is computed and no activation is allocated. What
PyTorch's ROCm build does with each ``aten.convolution`` follows ``aten/src/ATen/native/Convolution.cpp``
(``use_miopen``, ``view1d_as_2d``) and ``ConvUtils.h`` (``miopen_conv_suggest_memory_format``) of PyTorch 2.x.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from handlers.engines.module import DTYPES
from handlers.shapes import Shape
from warmup.miopen.layouts import CHANNELS_LAST, DEFAULT, packed_strides
from warmup.miopen.problem import ConvProblem
from warmup.trace.result import PlanTrace, ShapeTrace, TraceError

aten = torch.ops.aten
_DTYPES = {torch.float32: "FP32", torch.float16: "FP16", torch.bfloat16: "BF16"}
_CHANNELS_LAST_FORMATS = (torch.channels_last, torch.channels_last_3d)
# Under inference mode PyTorch shows these whole, instead of the aten.convolution that they come to.
_COMPOSITE = {
    overload
    for packet in (
        aten.conv1d,
        aten.conv2d,
        aten.conv3d,
        aten.conv_transpose1d,
        aten.conv_transpose2d,
        aten.conv_transpose3d,
    )
    for overload in (getattr(packet, name) for name in packet.overloads())
}
# What traced TorchScript calls; its first nine arguments are those of aten.convolution.
_INNER = {aten._convolution.default, aten._convolution.deprecated}
# Operations whose outputs are like their input, so that the fake implementation, which may run twenty fake operations
# to find that out, need not be asked. Batch norms by the position of their "training" argument (None: never training).
_ELEMENTWISE = {
    aten.relu.default,
    aten.silu.default,
    aten.gelu.default,
    aten.sigmoid.default,
    aten.hardswish.default,
    aten.hardtanh.default,
    aten.leaky_relu.default,
}
_BATCH_NORMS: dict[Any, int | None] = {
    aten.native_batch_norm.default: 5,
    aten._native_batch_norm_legit_no_training.default: None,
}


def trace_torch(
    function: Callable[..., Any],
    module: nn.Module,
    shapes: Iterable[Shape],
    *,
    nhwc: bool = False,
    autocast: torch.dtype | None = None,
) -> PlanTrace:
    """The convolutions of ``function`` at every shape; ``module`` holds the weights that ``function`` uses.

    ``function`` takes the tensors of a shape in order. ``nhwc`` is the setting of ``PYTORCH_MIOPEN_SUGGEST_NHWC``: only
    with it do channels_last tensors reach MIOpen as NHWC (and 5-D ones as NDHWC, which PyTorch before its change 160529
    packed as NCDHW). ``autocast`` runs everything under autocast to that dtype.
    Raises TraceError where the model's flow depends on values.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    whole = _Whole(function, module)
    tensors: dict[str, torch.Tensor] = {name: fake.from_tensor(tensor) for name, tensor in _tensors(whole)}
    traces = []
    memo: dict[Any, ConvProblem] = {}
    for shape in shapes:
        recorder = _Recorder(nhwc, memo)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(_gpu_autocast_on_cpu())
            stack.enter_context(fake)
            stack.enter_context(recorder)
            if autocast is not None:
                stack.enter_context(torch.autocast("cpu", autocast))
            inputs = tuple(torch.empty(tensor.dims, dtype=DTYPES[tensor.dtype]) for tensor in shape)
            try:
                torch.func.functional_call(whole, tensors, inputs)
            except Exception as error:  # a model's own code may raise anything
                raise TraceError(f"shape {shape}: {type(error).__name__}: {_first_line(error)}") from error
        traces.append(ShapeTrace(shape, recorder.calls, recorder.elsewhere))
    FakeTensorMode.cache_clear()
    return PlanTrace(tuple(traces))


class _Whole(nn.Module):
    """A function and its weights as one module, so that its weights can be replaced by fake ones."""

    def __init__(self, function: Callable[..., Any], module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._function = (function,)  # in a tuple: a function that is the module must not be registered twice

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self._function[0](*tensors)


class _Recorder(TorchDispatchMode):
    """Counts the convolutions of one run; everything else passes through."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled while tracing, so the compiler need not be imported to be kept out

    def __init__(self, nhwc: bool, memo: dict[Any, ConvProblem]) -> None:
        super().__init__()
        self.calls: Counter[ConvProblem] = Counter()
        self.elsewhere: Counter[str] = Counter()
        self._nhwc = nhwc
        self._memo = memo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.convolution.default:
            return self._convolution(*args, **kwargs)
        if func in _INNER:
            return self._convolution(*args[:9])
        if func in _COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        if func in _BATCH_NORMS and _like_input(args[0]):
            training = _BATCH_NORMS[func]
            if training is None or not args[training]:
                statistics = _fake(args[0], (0,), (1,))
                return _fake(args[0], args[0].shape, args[0].stride()), statistics, statistics
        elif func in _ELEMENTWISE and _like_input(args[0]):
            return _fake(args[0], args[0].shape, args[0].stride())
        elif func is aten.equal.default and not any(isinstance(tensor, FakeTensor) for tensor in args):
            with unset_fake_temporarily():  # TorchScript compares the weights that it froze into its code
                return func(*args)
        elif _in_place(func):
            return args[0]
        return func(*args, **kwargs)

    def _convolution(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> torch.Tensor:
        """Counts one ``aten.convolution`` and answers it as PyTorch's ROCm build would: packed in MIOpen's layout."""
        if any(tensor is not None and tensor.dtype != x.dtype for tensor in (w, bias)):
            raise TypeError(f"a convolution of {x.dtype} with weights of {w.dtype}")
        elsewhere = _elsewhere(x, dilation, groups)
        if elsewhere:
            self.elsewhere[elsewhere] += 1
            return aten.convolution.default(x, w, bias, stride, padding, dilation, transposed, output_padding, groups)
        layout = self._layout(x, w)
        numbers = (x.shape, w.shape, stride, padding, dilation, output_padding)
        dims = tuple(_two_spatial(values, at) for at, values in enumerate(numbers))
        key = (dims, transposed, groups, x.dtype, w.dtype, layout)
        if key not in self._memo:
            if not transposed:
                _check_reach(dims)
            self._memo[key] = ConvProblem.from_dims(
                dims[0],
                dims[1],
                stride=dims[2],
                pad=dims[3],
                dilation=dims[4],
                output_pad=dims[5] if transposed else (),
                groups=groups,
                transposed=transposed,
                dtypes=_DTYPES[x.dtype],
                layouts=layout,
            )
        problem = self._memo[key]
        self.calls[problem] += 1
        y, strides = problem.y_dims, packed_strides(problem.y_dims, layout)
        if x.dim() == 3:
            y, strides = (*y[:2], y[3]), (*strides[:2], strides[3])
        return _fake(x, y, strides) if isinstance(x, FakeTensor) else torch.empty_strided(y, strides, dtype=x.dtype)

    def _layout(self, x: torch.Tensor, w: torch.Tensor) -> str:
        """The layout in which PyTorch hands all three tensors over; it packs them first."""
        spatial = max(2, x.dim() - 2)
        last = self._nhwc and x.dim() > 3 and any(suggest_memory_format(t) in _CHANNELS_LAST_FORMATS for t in (x, w))
        return CHANNELS_LAST[spatial] if last else DEFAULT[spatial]


def _elsewhere(x: torch.Tensor, dilation: Sequence[int], groups: int) -> str:
    """Why PyTorch does not ask MIOpen for a convolution of ``x``; empty where it does."""
    if x.dtype not in _DTYPES:
        return f"{str(x.dtype).removeprefix('torch.')}: MIOpen takes fp32, fp16 and bf16"
    if groups > 1 and any(step != 1 for step in dilation):
        return "grouped and dilated: PyTorch uses its own kernels"
    return "empty input" if 0 in x.shape else ""


def _check_reach(dims: tuple[tuple[int, ...], ...]) -> None:
    """What PyTorch refuses and MIOpen would not: a filter that reaches beyond the padded input."""
    x, w, _, padding, dilation, _ = dims
    for size, reach, pad, step in zip(x[2:], w[2:], padding, dilation, strict=True):
        if step * (reach - 1) + 1 > size + 2 * pad:
            raise ValueError(f"a filter of {w[2:]} with dilation {dilation} on an input of {x[2:]} with pads {padding}")


def _like_input(x: torch.Tensor) -> bool:
    """Whether an operation that keeps its input's format may be answered from the input's strides alone."""
    packed = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
    return packed and isinstance(x, FakeTensor) and x.is_floating_point()


def _fake(like: FakeTensor, dims: Sequence[int], strides: Sequence[int]) -> FakeTensor:
    """A fake tensor of these dims and of the dtype and device of another, made without the fake dispatcher."""
    with no_dispatch():
        data = torch.empty_strided(dims, strides, dtype=like.dtype, device="meta")
        return FakeTensor(like.fake_mode, data, like.fake_device)


@cache
def _in_place(func: Any) -> bool:
    """Whether an operator only writes values into its first argument: dims, strides and dtype stay as they are."""
    arguments = func._schema.arguments
    returns_self = func._schema.name.endswith("_") and arguments and arguments[0].name == "self"
    return bool(returns_self) and arguments[0].alias_info is not None and torch.Tag.inplace_view not in func.tags


_ONE_WIDE = ((2, 1), (2, 1), (0, 1), (0, 0), (0, 1), (0, 0))  # where and what, by the order of _record's numbers


def _two_spatial(values: Sequence[int], which: int) -> tuple[int, ...]:
    """A 1-D convolution's numbers as the 2-D convolution of height 1 that PyTorch makes of it."""
    at, filler = _ONE_WIDE[which]
    numbers = tuple(int(value) for value in values)
    return numbers[:at] + (filler,) + numbers[at:] if len(numbers) == at + 1 else numbers


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


@contextmanager
def _gpu_autocast_on_cpu() -> Iterator[None]:
    """A model's own ``autocast("cuda")`` takes effect on the CPU's fake tensors, with the GPU's default dtype.

    Both cast every convolution to the lower dtype; without this a machine without a GPU would switch it off.
    """
    original = torch.autocast.__init__

    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *rest: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, *rest, **kwargs)

    with patch.object(torch.autocast, "__init__", init):
        yield


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
