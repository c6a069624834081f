"""MIOpen itself, through ctypes: versions, Find 1.0 in its three directions, and immediate mode.

No framework is needed, only ``libMIOpen.so`` and the HIP runtime that it brings along. Every call is checked; a failure
names the function and MIOpen's own word for the status. A handle and all that was made from it belong to one thread.

Source of constants and argument orders: MIOpen's public header ``miopen/miopen.h``, version 3.4.0.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_bool, c_float, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from warmup.miopen.layouts import packed_strides
from warmup.miopen.problem import ConvProblem

LIBRARY_VARIABLE = "PREHEAT_MIOPEN_LIBRARY"
_SONAME = "libMIOpen.so.1"
# miopenDataType_t, and bytes of one element, by MIOpen's name of the dtype.
_DTYPES = {
    "FP16": (0, 2),
    "FP32": (1, 4),
    "INT32": (2, 4),
    "INT8": (3, 1),
    "BF16": (5, 2),
    "FP64": (6, 8),
    "FP8": (7, 1),
    "BF8": (8, 1),
    "INT64": (9, 8),
}
_CONVOLUTION, _TRANSPOSE = 0, 1  # miopenConvolutionMode_t
_NAMES = {"F": "Forward", "B": "BackwardData", "W": "BackwardWeights"}
_STATUSES = (  # miopenStatus_t
    "success",
    "not initialized",
    "invalid value",
    "bad parameter",
    "allocation failed",
    "internal error",
    "not implemented",
    "unknown error",
    "unsupported operation",
    "GPU operations skipped",
    "version mismatch",
)
# Top-level algorithms, by value of miopenConvAlgorithm_t; backward weights lacks none of the values that it uses.
_ALGORITHMS = {0: "GEMM", 1: "Direct", 2: "FFT", 3: "Winograd", 4: "Transpose GEMM", 5: "ImplicitGEMM"}
_MOST_ALGORITHMS = 16  # Find 1.0 returns one entry per algorithm at most


class LibraryError(Exception):
    """The library cannot be loaded; the message says which paths were tried and what the loader said."""


class MIOpenError(Exception):
    """A call that did not succeed: ``function``, and ``status`` as a number of ``miopenStatus_t`` or ``hipError_t``."""

    def __init__(self, function: str, status: int, detail: str) -> None:
        super().__init__(f"{function}: {detail} (status {status})")
        self.function = function
        self.status = status


class _Performance(ctypes.Structure):
    """miopenConvAlgoPerf_t."""

    _fields_ = [("algorithm", c_int), ("time", c_float), ("memory", c_size_t)]


class _Solution(ctypes.Structure):
    """miopenConvSolution_t."""

    _fields_ = [("time", c_float), ("workspace", c_size_t), ("id", c_uint64), ("algorithm", c_int)]


@dataclass(frozen=True)
class Found:
    """One algorithm that Find 1.0 returned: its time in milliseconds and its workspace in bytes."""

    algorithm: int
    milliseconds: float
    workspace: int

    @property
    def name(self) -> str:
        return _ALGORITHMS.get(self.algorithm, str(self.algorithm))


@dataclass(frozen=True)
class Solution:
    """One solution of immediate mode; ``id`` names the solver. Milliseconds may be an estimate, and negative then."""

    id: int
    algorithm: int
    milliseconds: float
    workspace: int


def candidates(path: str | None = None) -> tuple[str, ...]:
    """Where the library is looked for, in order.

    ``path`` alone where given, else $PREHEAT_MIOPEN_LIBRARY alone; else the one inside an installed PyTorch (which is
    the one that PyTorch loads, whatever else is on the machine), then ROCm's, then the loader's own search.
    """
    chosen = path or os.environ.get(LIBRARY_VARIABLE)
    if chosen:
        return (chosen,)
    folders = []
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.submodule_search_locations:
        folders.append(Path(torch.submodule_search_locations[0]) / "lib")
    folders.append(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib")
    existing = [str(file) for folder in folders for file in sorted(folder.glob("libMIOpen.so*"))]
    return (*existing, _SONAME)


class Library:
    """A loaded libMIOpen. The environment variables that steer MIOpen are read by its first calls, once per process."""

    def __init__(self, path: str | None = None) -> None:
        failures = []
        for candidate in candidates(path):
            try:
                self._functions = ctypes.CDLL(candidate)
            except OSError as error:
                failures.append(str(error))
                continue
            self.path = candidate
            return
        raise LibraryError(f"MIOpen cannot be loaded: {'; '.join(failures)}")

    def version(self) -> tuple[int, int, int]:
        """Major, minor, patch. The build's hash is not told by any function: see ``identity.probe``."""
        parts = (c_size_t(), c_size_t(), c_size_t())
        self.call("miopenGetVersion", *(byref(part) for part in parts))
        return parts[0].value, parts[1].value, parts[2].value

    @contextmanager
    def handle(self) -> Iterator[Handle]:
        """A handle on the current device and its default stream; raises MIOpenError where there is no device."""
        pointer = c_void_p()
        self.call("miopenCreate", byref(pointer))
        try:
            yield Handle(self, pointer)
        finally:
            self.call("miopenDestroy", pointer)

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a function that returns a status; raises MIOpenError unless that is 0."""
        status = self._function(function)(*arguments)
        if not status:
            return
        if function.startswith("hip"):
            describe = self._function("hipGetErrorString")
            describe.restype = ctypes.c_char_p
            raise MIOpenError(function, status, describe(status).decode())
        known = 0 <= status < len(_STATUSES)
        raise MIOpenError(function, status, _STATUSES[status] if known else "a status that the header does not name")

    def _function(self, name: str) -> Any:
        # Names of the HIP runtime are found too: dlsym searches what libMIOpen itself depends on.
        try:
            return getattr(self._functions, name)
        except AttributeError as error:
            raise LibraryError(
                f"{self.path} has no function {name}: not an MIOpen built for HIP, or too old"
            ) from error


class Handle:
    """An MIOpen handle: it keeps loaded kernels and prepared invokers, so a first call is paid once per handle."""

    def __init__(self, library: Library, pointer: c_void_p) -> None:
        self.library = library
        self.pointer = pointer

    @contextmanager
    def convolution(
        self, problem: ConvProblem, strides: Sequence[Sequence[int]] | None = None
    ) -> Iterator[Convolution]:
        """The problem with descriptors, and with buffers on the device that nobody fills: results mean nothing.

        ``strides`` of x, w and y, in elements, where they are not packed in the problem's layouts. Raises MIOpenError
        where MIOpen does not take the problem or memory is short.
        """
        dims = (problem.x_dims, problem.w_dims, problem.y_dims)
        strides = strides or [packed_strides(*of) for of in zip(dims, problem.layouts, strict=True)]
        with ExitStack() as owned:
            tensors, buffers = [], []
            for of in zip(dims, strides, problem.dtypes, problem.casts, strict=True):
                tensors.append(_tensor(self.library, owned, *of))
                buffers.append(_allocate(self.library, owned, _bytes(*of[:3])))
            descriptor = _descriptor(self.library, owned, problem)
            with Convolution(self, problem, descriptor, tensors, buffers) as convolution:
                yield convolution


class Convolution:
    """One problem on one handle. Methods raise MIOpenError; ``workspace`` is always in bytes."""

    def __init__(
        self,
        handle: Handle,
        problem: ConvProblem,
        descriptor: c_void_p,
        tensors: Sequence[c_void_p],
        buffers: Sequence[c_void_p],
    ) -> None:
        self._library = handle.library
        self._handle = handle.pointer
        self.problem = problem
        self._descriptor = descriptor
        (self._x, self._w, self._y), (self._x_data, self._w_data, self._y_data) = tensors, buffers
        self._name = _NAMES[problem.direction]
        self._scratch, self._scratch_size = c_void_p(), 0

    def __enter__(self) -> Convolution:
        return self

    def __exit__(self, *exception: object) -> None:
        self._free_scratch()

    def workspace(self) -> int:
        """What MIOpen says that the convolution needs: the best known solver's on a find-db hit, else the largest.

        It leaves GEMM out where dilation is above 1, so a Find with this much skips GEMM, and then MIOpen stores no
        record unless told to; see ``search_workspace``.
        """
        size = c_size_t()
        self._call(f"miopenConvolution{self._name}GetWorkSpaceSize", *self._by_role(), byref(size))
        return size.value

    def search_workspace(self) -> int:
        """A workspace with which no solver is skipped: MIOpen's answer, and at least the unfolded input of GEMM."""
        problem = self.problem
        wide, narrow = problem.in_channels, problem.out_spatial
        if problem.transposed:
            wide, narrow = problem.out_channels, problem.in_spatial
        unfolded = wide * prod(problem.filter) * prod(narrow) * max(_DTYPES[dtype][1] for dtype in problem.dtypes)
        return max(self.workspace(), unfolded)

    def find(self, *, search: bool = False, workspace: int | None = None) -> tuple[Found, ...]:
        """``miopenFindConvolution...Algorithm``, fastest first; ``search`` is its ``exhaustiveSearch``.

        ``workspace`` is what MIOpen asks for unless given. What a Find reads, times and writes depends on the mode that
        the environment sets.
        """
        size = self.workspace() if workspace is None else workspace
        found, count = (_Performance * _MOST_ALGORITHMS)(), c_int()
        self._call(
            f"miopenFindConvolution{self._name}Algorithm",
            *self._with_data(),
            c_int(_MOST_ALGORITHMS),
            byref(count),
            found,
            self._scratch_of(size),
            c_size_t(size),
            c_bool(search),
        )
        results = [Found(item.algorithm, item.time, item.memory) for item in found[: count.value]]
        return tuple(sorted(results, key=lambda item: item.milliseconds))

    def run(self, chosen: Found) -> None:
        """Executes the convolution with an algorithm that ``find`` returned on this handle, and waits for it."""
        one, zero = c_float(1), c_float(0)
        (first, first_data, second, second_data, descriptor, last, last_data) = self._with_data()
        self._call(
            f"miopenConvolution{self._name}",
            byref(one),
            first,
            first_data,
            second,
            second_data,
            descriptor,
            c_int(chosen.algorithm),
            byref(zero),
            last,
            last_data,
            self._scratch_of(chosen.workspace),
            c_size_t(chosen.workspace),
        )
        self._wait()

    def solutions(self) -> tuple[Solution, ...]:
        """What immediate mode offers, fastest first: from the find-db, else a heuristic's guesses. Times nothing."""
        limit, count = c_size_t(), c_size_t()
        self._call(f"miopenConvolution{self._name}GetSolutionCount", *self._by_role(), byref(limit))
        if not limit.value:
            return ()
        found = (_Solution * limit.value)()
        self._call(f"miopenConvolution{self._name}GetSolution", *self._by_role(), limit, byref(count), found)
        results = [Solution(item.id, item.algorithm, item.time, item.workspace) for item in found[: count.value]]
        return tuple(sorted(results, key=lambda item: item.milliseconds))

    def run_solution(self, chosen: Solution) -> None:
        """Compiles a solution of immediate mode, executes it, and waits for it."""
        self._call(f"miopenConvolution{self._name}CompileSolution", *self._by_role(), c_uint64(chosen.id))
        x, w, y = (self._x, self._x_data), (self._w, self._w_data), (self._y, self._y_data)
        first, second, last = {"F": (w, x, y), "B": (y, w, x), "W": (y, x, w)}[self.problem.direction]
        self._call(
            f"miopenConvolution{self._name}Immediate",
            *first,
            *second,
            self._descriptor,
            *last,
            self._scratch_of(chosen.workspace),
            c_size_t(chosen.workspace),
            c_uint64(chosen.id),
        )
        self._wait()

    def _by_role(self) -> tuple[c_void_p, ...]:
        """Descriptors in the order of workspace queries and of immediate mode, which put w first going forward."""
        x, w, y = self._x, self._w, self._y
        first, second, last = {"F": (w, x, y), "B": (y, w, x), "W": (y, x, w)}[self.problem.direction]
        return first, second, self._descriptor, last

    def _with_data(self) -> tuple[c_void_p, ...]:
        """Descriptors and buffers in the order of Find 1.0 and of execution."""
        x, w, y = (self._x, self._x_data), (self._w, self._w_data), (self._y, self._y_data)
        first, second, last = {"F": (x, w, y), "B": (y, w, x), "W": (y, x, w)}[self.problem.direction]
        return (*first, *second, self._descriptor, *last)

    def _call(self, function: str, *arguments: Any) -> None:
        self._library.call(function, self._handle, *arguments)

    def _wait(self) -> None:
        self._library.call("hipStreamSynchronize", None)

    def _scratch_of(self, size: int) -> c_void_p:
        """A workspace of at least ``size`` bytes, kept between calls so that repeated runs allocate nothing."""
        if size > self._scratch_size:
            self._free_scratch()
            self._library.call("hipMalloc", byref(self._scratch), c_size_t(size))
            self._scratch_size = size
        return self._scratch

    def _free_scratch(self) -> None:
        if self._scratch_size:
            self._library.call("hipFree", self._scratch)
            self._scratch, self._scratch_size = c_void_p(), 0


def _tensor(
    library: Library, owned: ExitStack, dims: Sequence[int], strides: Sequence[int], dtype: str, cast: str | None
) -> c_void_p:
    tensor = _create(library, owned, "TensorDescriptor")
    library.call("miopenSetTensorDescriptor", tensor, _DTYPES[dtype][0], len(dims), _ints(dims), _ints(strides))
    if cast:
        library.call("miopenSetTensorCastType", tensor, _DTYPES[cast][0])
    return tensor


def _descriptor(library: Library, owned: ExitStack, problem: ConvProblem) -> c_void_p:
    descriptor = _create(library, owned, "ConvolutionDescriptor")
    mode = _TRANSPOSE if problem.transposed else _CONVOLUTION
    sizes = (_ints(problem.pad), _ints(problem.stride), _ints(problem.dilation))
    library.call("miopenInitConvolutionNdDescriptor", descriptor, problem.spatial_dims, *sizes, mode)
    if problem.groups != 1:
        library.call("miopenSetConvolutionGroupCount", descriptor, problem.groups)
    if problem.transposed and any(problem.output_pad):
        padding = _ints(problem.output_pad)
        library.call("miopenSetTransposeConvNdOutputPadding", descriptor, problem.spatial_dims, padding)
    return descriptor


def _create(library: Library, owned: ExitStack, kind: str) -> c_void_p:
    pointer = c_void_p()
    library.call(f"miopenCreate{kind}", byref(pointer))
    owned.callback(library.call, f"miopenDestroy{kind}", pointer)
    return pointer


def _allocate(library: Library, owned: ExitStack, size: int) -> c_void_p:
    pointer = c_void_p()
    library.call("hipMalloc", byref(pointer), c_size_t(size))
    owned.callback(library.call, "hipFree", pointer)
    return pointer


def _bytes(dims: Sequence[int], strides: Sequence[int], dtype: str) -> int:
    """Up to and including the last element."""
    return (1 + sum((size - 1) * stride for size, stride in zip(dims, strides, strict=True))) * _DTYPES[dtype][1]


def _ints(values: Iterable[int]) -> ctypes.Array[c_int]:
    numbers = tuple(values)
    return (c_int * len(numbers))(*numbers)
