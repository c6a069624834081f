"""Inference requests of the Open Inference Protocol v2: as JSON, with binary tensors, with tensors in shared memory.

Sources: KServe's "Open Inference Protocol", specification/protocol/inference_rest.md, and Triton's
docs/protocol/extension_binary_data.md and extension_shared_memory.md. Pure functions: bytes in, arrays out. Answers are
in ``oip_answers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import simdjson

from handlers.errors import InvalidInput
from handlers.shapes import DTYPES
from handlers.spec import TensorSpec
from serving.http import tensors

HEADER_LENGTH = "inference-header-content-length"

# Below this many bytes a typed parse of the whole text is faster than looking keys up in simdjson's tree
# (benchmarks/codec.py); above, the text is walked once only.
_TYPED_BYTES = 8192

_Dim = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class _SharedMemory(msgspec.Struct):
    shared_memory_region: str | None = None
    shared_memory_offset: _Bytes = 0
    shared_memory_byte_size: _Bytes | None = None


class _InputParameters(_SharedMemory):
    binary_data_size: _Bytes | None = None


class _Input(msgspec.Struct):
    name: str
    shape: list[_Dim]
    datatype: str
    parameters: _InputParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class _OutputParameters(_SharedMemory):
    binary_data: bool | None = None
    classification: Any = None


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters | None = None


class _RequestParameters(msgspec.Struct):
    binary_data_output: bool | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: _RequestParameters | None = None
    outputs: list[_Output] | None = None


_decoder = msgspec.json.Decoder(_Request)
_REQUEST_KEYS = frozenset({"id", "parameters", "outputs"})
_INPUT_KEYS = frozenset({"name", "shape", "datatype", "parameters"})
_ABSENT = (b"", b"null")
_NO_PARAMETERS = _InputParameters()


class Place(NamedTuple):
    """``size`` bytes of a region of shared memory, from its byte ``offset`` on."""

    region: str
    offset: int
    size: int


class Wanted(NamedTuple):
    """An output that is asked for: as binary data, as JSON, or written to a place in shared memory."""

    name: str
    binary: bool
    place: Place | None = None


class Shared(NamedTuple):
    """An input that is in shared memory: where, and its dims."""

    place: Place
    dims: tuple[int, ...]


class InferRequest(msgspec.Struct, frozen=True):  # a frozen dataclass takes ten times as long to make
    """A checked request.

    ``inputs`` has every input of the model in declared order, but for those in ``shared``; arrays may be read-only
    views of the request body, and bf16 is raw 16-bit words. ``outputs`` are the wanted outputs; empty means all, as
    binary data if ``binary_default``. ``write`` puts those that have a place in shared memory there.
    """

    id: str | None
    inputs: dict[str, np.ndarray]
    outputs: tuple[Wanted, ...] = ()
    binary_default: bool = False
    shared: dict[str, Shared] = {}
    write: Callable[[Place, memoryview], None] | None = None

    @property
    def places(self) -> list[Place]:
        """All that it names in shared memory."""
        found = [shared.place for shared in self.shared.values()]
        return found + [wanted.place for wanted in self.outputs if wanted.place is not None]


def parse_header_length(value: str | None) -> int | None:
    """The ``Inference-Header-Content-Length`` of a request, None where absent; raises InvalidInput on a non-number."""
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise InvalidInput(f"header Inference-Header-Content-Length must be a number of bytes, found {shown(value)}")
    return int(value)


class Decoder:
    """Reads inference requests for one model.

    ``outputs`` are the model's outputs where they are known before it ran.
    """

    def __init__(self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...] = ()) -> None:
        self._names = tuple(spec.name for spec in inputs)
        self._specs = {spec.name: spec for spec in inputs}
        self._outputs = {spec.name: spec.dtype for spec in outputs}
        self._all_have_json = "bf16" not in self._outputs.values()

    def decode(self, body: bytes | memoryview, header_length: int | None) -> InferRequest:
        """Reads and checks a request against the model's declared tensors.

        ``header_length`` is the length of the JSON at the start of ``body`` where binary tensor data follows it.
        Raises InvalidInput on everything that the protocol or the model does not allow.
        """
        if header_length is not None and not 0 <= header_length <= len(body):
            raise InvalidInput(
                f"header Inference-Header-Content-Length is {header_length}, but the body has {len(body)} bytes"
            )
        request, data = _document(body if header_length is None else body[:header_length])
        arrays, shared = _arrays(body, header_length, request.inputs, data, self._specs)
        binary_default = bool(request.parameters and request.parameters.binary_data_output)
        wanted = _wanted(request.outputs, binary_default) if request.outputs else ()
        if self._outputs and (wanted or not (binary_default or self._all_have_json)):
            _check_wanted(wanted, binary_default, self._outputs)
        if len(self._names) > 1:
            arrays = {name: arrays[name] for name in self._names if name in arrays}
        return InferRequest(request.id, arrays, wanted, binary_default, shared)


def _place(parameters: _SharedMemory, what: str) -> Place | None:
    """Where in shared memory a tensor is; None where it is not."""
    region, size = parameters.shared_memory_region, parameters.shared_memory_byte_size
    if region is None and size is None:
        return None
    if region is None or size is None:
        raise InvalidInput(f"{what}: shared_memory_region and shared_memory_byte_size go together")
    return Place(region, parameters.shared_memory_offset, size)


def _document(text: bytes | memoryview) -> tuple[_Request, list[Any]]:
    """The request without tensor data, and per input its data: JSON text, a simdjson proxy, or None where absent."""
    try:
        if len(text) <= _TYPED_BYTES:
            request = _decoder.decode(text)
            texts = [bytes(entry.data) for entry in request.inputs]
            return request, [None if text in _ABSENT else text for text in texts]
        root = tensors.parse(text)
        if not isinstance(root, simdjson.Object):
            raise InvalidInput("inference request: must be a JSON object")
        listed = root.get("inputs")
        entries = list(listed) if isinstance(listed, simdjson.Array) else []
        data = [entry.get("data") if isinstance(entry, simdjson.Object) else None for entry in entries]
        plain = {key: _plain(root[key]) for key in root if key in _REQUEST_KEYS}
        if listed is not None:
            plain["inputs"] = [_fields(entry) for entry in entries] if entries else _plain(listed)
        return msgspec.convert(plain, _Request), data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"inference request: {error}") from None
    except RecursionError:
        raise InvalidInput("inference request: nested too deep") from None


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _fields(entry: Any) -> Any:
    if not isinstance(entry, simdjson.Object):
        return _plain(entry)
    return {key: _plain(entry[key]) for key in entry if key in _INPUT_KEYS}


def _arrays(
    body: bytes | memoryview,
    header_length: int | None,
    entries: list[_Input],
    data: list[Any],
    specs: dict[str, TensorSpec],
) -> tuple[dict[str, np.ndarray], dict[str, Shared]]:
    arrays: dict[str, np.ndarray] = {}
    shared: dict[str, Shared] = {}
    sizes: dict[str, int] = {}
    offset = len(body) if header_length is None else header_length
    for entry, elements in zip(entries, data, strict=True):
        spec = specs.get(entry.name)
        if spec is None:
            raise InvalidInput(f"unknown input {shown(entry.name)}; the model takes: {', '.join(specs)}")
        if entry.name in arrays or entry.name in shared:
            raise InvalidInput(f"input {entry.name!r} is given twice")
        dims = _dims(entry, spec, sizes)
        parameters = entry.parameters or _NO_PARAMETERS
        place = _place(parameters, f"input {entry.name!r}")
        if place is not None:
            if elements is not None or parameters.binary_data_size is not None:
                raise InvalidInput(
                    f"input {entry.name!r} is in shared memory, and data is sent as well; one is allowed"
                )
            _check_size(spec, dims, "shared_memory_byte_size", place.size)
            shared[entry.name] = Shared(place, dims)
            continue
        if parameters.binary_data_size is None:
            if elements is None:
                raise InvalidInput(f"input {entry.name!r} has neither data nor parameters.binary_data_size")
            if isinstance(elements, bytes):
                arrays[entry.name] = tensors.from_text(elements, spec, dims)
            else:
                arrays[entry.name] = tensors.from_json(elements, spec, dims)
            continue
        if elements is not None:
            raise InvalidInput(f"input {entry.name!r} has both data and parameters.binary_data_size; one is allowed")
        if header_length is None:
            raise InvalidInput(
                f"input {entry.name!r} is binary data, but the header Inference-Header-Content-Length is missing"
            )
        _check_size(spec, dims, "binary_data_size", parameters.binary_data_size)
        if parameters.binary_data_size > len(body) - offset:
            raise InvalidInput(
                f"input {spec.name!r}: binary_data_size is {parameters.binary_data_size}, but the body has "
                f"{len(body) - offset} bytes left"
            )
        arrays[entry.name] = tensors.from_bytes(body, offset, spec, dims)
        offset += parameters.binary_data_size
    if offset != len(body):
        raise InvalidInput(f"the body has {len(body) - offset} bytes after the last input's binary data")
    missing = [name for name in specs if name not in arrays and name not in shared]
    if missing:
        raise InvalidInput(f"missing input {', '.join(missing)}; the model takes: {', '.join(specs)}")
    return arrays, shared


def _dims(entry: _Input, spec: TensorSpec, sizes: dict[str, int]) -> tuple[int, ...]:
    """The dims of an input, checked against the model's; ``sizes`` gathers the axes that the inputs share."""
    datatype = DTYPES[spec.dtype][1]
    if entry.datatype != datatype:
        raise InvalidInput(f"input {spec.name!r} has datatype {shown(entry.datatype)}; the model takes {datatype}")
    dims = tuple(entry.shape)
    fits = len(dims) == len(spec.dims)
    for mine, theirs in zip(spec.dims, dims, strict=False):
        if isinstance(mine, int):
            fits = fits and mine == theirs
        elif sizes.setdefault(mine, theirs) != theirs:
            raise InvalidInput(f"input {spec.name!r}: axis {mine} is {theirs}, but elsewhere {sizes[mine]}")
    if not fits:
        raise InvalidInput(
            f"input {spec.name!r} has shape {shown(list(dims))}; the model takes [{', '.join(map(str, spec.dims))}]"
        )
    return dims


def _check_size(spec: TensorSpec, dims: tuple[int, ...], name: str, given: int) -> None:
    needed = math.prod(dims) * tensors.itemsize(spec)
    if given != needed:
        raise InvalidInput(
            f"input {spec.name!r}: {name} is {given}, but shape {list(dims)} of "
            f"{DTYPES[spec.dtype][1]} has {needed} bytes"
        )


def _wanted(entries: list[_Output], binary_default: bool) -> tuple[Wanted, ...]:
    wanted: dict[str, Wanted] = {}
    for entry in entries:
        if entry.name in wanted:
            raise InvalidInput(f"output {shown(entry.name)} is asked for twice")
        binary = place = None
        if entry.parameters is not None:
            if entry.parameters.classification is not None:
                raise InvalidInput(f"output {shown(entry.name)}: classification is not supported")
            binary = entry.parameters.binary_data
            place = _place(entry.parameters, f"output {shown(entry.name)}")
        wanted[entry.name] = Wanted(entry.name, binary_default if binary is None else binary, place)
    return tuple(wanted.values())


def _check_wanted(wanted: tuple[Wanted, ...], binary_default: bool, dtypes: dict[str, str]) -> None:
    """What ``encode`` would refuse after the model ran, refused before."""
    for name, binary, place in wanted or tuple(Wanted(name, binary_default) for name in dtypes):
        if name not in dtypes:
            raise InvalidInput(f"unknown output {shown(name)}; the model gives: {', '.join(dtypes)}")
        if dtypes[name] == "bf16" and not binary and place is None:
            raise InvalidInput(f"output {name!r}: BF16 cannot be sent as JSON; ask for it with binary_data: true")


def shown(value: object) -> str:
    """What a client sent, short enough for an error message."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
