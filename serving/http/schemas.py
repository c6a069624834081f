"""JSON schemas (draft 2020-12, as OpenAPI 3.1 has them) of what goes over the serving port."""

from __future__ import annotations

from typing import Any

import numpy as np

from handlers.shapes import DTYPES
from handlers.spec import TensorSpec

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
BINARY: Schema = {"type": "string", "format": "binary"}


def record(properties: Schema, optional: tuple[str, ...] = (), description: str = "") -> Schema:
    """An object whose properties are all required but the ``optional`` ones; others are allowed."""
    required = [name for name in properties if name not in optional]
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if description:
        schema["description"] = description
    return schema


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def element(dtype: str) -> Schema:
    """One element of a tensor of this dtype (short name) in a request."""
    numpy_dtype = np.dtype(DTYPES[dtype][0])
    if numpy_dtype.kind == "b":
        return BOOLEAN
    if numpy_dtype.kind == "f":
        limit = float(np.finfo(numpy_dtype).max)
        return {"type": "number", "minimum": -limit, "maximum": limit}
    limits = np.iinfo(numpy_dtype)
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}


def tensor_data() -> Schema:
    """The schemas of tensor data in requests, by component name: flat in row-major order, or nested."""
    schemas: Schema = {}
    for dtype, (_, datatype) in DTYPES.items():
        if dtype != "bf16":  # travels as binary data only
            nested = {"anyOf": [element(dtype), reference(f"Data{datatype}")]}
            schemas[f"Data{datatype}"] = array(nested, minItems=1)
    return schemas


def input_tensor(spec: TensorSpec) -> Schema:
    """One entry of ``inputs`` in a request to a model that declares ``spec``."""
    datatype = DTYPES[spec.dtype][1]
    dims = [{"const": dim} if isinstance(dim, int) else {"type": "integer", "minimum": 1} for dim in spec.dims]
    shape: Schema = {"type": "array", "minItems": len(dims), "maxItems": len(dims)}
    if dims:
        shape["prefixItems"] = dims
    shape["description"] = f"[{', '.join(map(str, spec.dims))}]"
    properties: Schema = {
        "name": {"const": spec.name},
        "shape": shape,
        "datatype": {"const": datatype},
        "parameters": nullable(reference("InputParameters")),
    }
    optional = ["parameters"]
    if spec.dtype != "bf16":
        properties["data"] = reference(f"Data{datatype}")
        optional.append("data")
    return record(properties, tuple(optional))


def infer_request(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Schema:
    """The JSON of an inference request to a model with these inputs and outputs."""
    entries = [input_tensor(spec) for spec in inputs]
    output: Schema = {"enum": [spec.name for spec in outputs]} if outputs else STRING
    wanted = record({"name": output, "parameters": nullable(reference("OutputParameters"))}, ("parameters",))
    return record(
        {
            "id": nullable(STRING),
            "parameters": nullable(reference("RequestParameters")),
            "inputs": array(
                entries[0] if len(entries) == 1 else {"anyOf": entries}, minItems=len(entries), maxItems=len(entries)
            ),
            "outputs": nullable(array(wanted)),
        },
        ("id", "parameters", "outputs"),
    )


_BYTES: Schema = {"type": "integer", "minimum": 0, "maximum": 1 << 53}
_SHARED_MEMORY: Schema = {
    "shared_memory_region": nullable(STRING),
    "shared_memory_offset": _BYTES,
    "shared_memory_byte_size": nullable(_BYTES),
}

COMPONENTS: Schema = {
    "Error": record({"error": STRING, "shapes": array(STRING)}, ("shapes",), "What was wrong, where, what is allowed."),
    "TorchServeError": record(
        {"code": {"type": "integer"}, "type": STRING, "message": STRING, "shapes": array(STRING)}, ("shapes",)
    ),
    "InputParameters": record(
        {"binary_data_size": nullable(_BYTES), **_SHARED_MEMORY},
        ("binary_data_size", *_SHARED_MEMORY),
        "binary_data_size: bytes of this tensor after the JSON, instead of data. shared_memory_*: where it is, if the "
        "server's extensions have system_shared_memory.",
    ),
    "OutputParameters": record(
        {"binary_data": nullable(BOOLEAN), **_SHARED_MEMORY},
        ("binary_data", *_SHARED_MEMORY),
        "shared_memory_*: where the output is to be written, and how many bytes there are for it.",
    ),
    "SharedMemory": record(
        {"key": STRING, "offset": {"type": "integer", "minimum": 0}, "byte_size": {"type": "integer", "minimum": 1}},
        ("offset",),
        "key: the name of an object of POSIX shared memory, as for shm_open.",
    ),
    "SharedMemoryStatus": array(
        record({"name": STRING, "key": STRING, "offset": {"type": "integer"}, "byte_size": {"type": "integer"}})
    ),
    "RequestParameters": record({"binary_data_output": nullable(BOOLEAN)}, ("binary_data_output",)),
    "InferResponse": record(
        {
            "model_name": STRING,
            "model_version": STRING,
            "id": STRING,
            "outputs": array(
                record(
                    {
                        "name": STRING,
                        "datatype": {"enum": [datatype for _, datatype in DTYPES.values()]},
                        "shape": array(COUNT),
                        "parameters": record(
                            {"binary_data_size": COUNT, **_SHARED_MEMORY}, ("binary_data_size", *_SHARED_MEMORY)
                        ),
                        "data": array({"type": ["number", "boolean", "null"]}),
                    },
                    ("parameters", "data"),
                )
            ),
        },
        ("id",),
    ),
    "ServerMetadata": record({"name": STRING, "version": STRING, "extensions": array(STRING)}),
    "Live": record({"live": BOOLEAN}),
    "Ready": record({"ready": BOOLEAN, "draining": BOOLEAN, "models": mapping({"type": "object"})}),
    "Ping": record({"status": {"enum": ["Healthy", "Unhealthy"]}}),
    "ModelMetadata": record(
        {
            "name": STRING,
            "versions": array(STRING),
            "platform": STRING,
            "inputs": array(reference("TensorMetadata")),
            "outputs": array(reference("TensorMetadata")),
        }
    ),
    "TensorMetadata": record(
        {"name": STRING, "datatype": STRING, "shape": array({"type": "integer", "minimum": -1})},
        (),
        "A dim of -1 is variable.",
    ),
    "ModelReady": record({"name": STRING, "ready": BOOLEAN}),
    "Shapes": record(
        {
            "name": STRING,
            "version": STRING,
            "state": STRING,
            "cold": {"enum": ["pad", "run", "reject"]},
            "coverage": NUMBER,
            "outcomes": mapping(COUNT),
            "shapes": array(reference("ShapeState")),
            "learnt": array(reference("ShapeState")),
            "met_cold": mapping(COUNT),
            "met_cold_at": mapping(reference("MetCold")),
        },
        (),
        "The plan with proof times in seconds, what is warm, what was learnt beside it, and what requests met.",
    ),
    "MetCold": record(
        {"first": TIME, "last": TIME}, (), "When a shape outside the warm set was asked for, first and last, in UTC."
    ),
    "ShapeState": record(
        {
            "shape": STRING,
            "weight": NUMBER,
            "proven": BOOLEAN,
            "warm": BOOLEAN,
            "cold_seconds": {"type": ["number", "null"]},
            "first_seconds": {"type": ["number", "null"]},
            "steady_seconds": {"type": ["number", "null"]},
            "reason": STRING,
        }
    ),
    "ModelList": record({"models": array(record({"modelName": STRING, "modelUrl": STRING}))}),
    "ModelDescriptions": array(record({"modelName": STRING, "modelVersion": STRING, "batchSize": COUNT})),
    "Status": record({"ready": BOOLEAN, "draining": BOOLEAN}),
}
