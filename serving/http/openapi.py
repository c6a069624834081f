"""The OpenAPI 3.1 document of the serving port, with the exact tensors of every model, and the page that shows it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version as package_version
from typing import Any, Protocol
from urllib.parse import quote

from handlers.spec import ModelSpec, TensorSpec
from serving.http import documentation, schemas
from serving.http.schemas import BINARY, COMPONENTS, STRING, Schema, reference
from warmup.plan import Plan


class Described(Protocol):
    """What the document needs to know of a served model."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...


_JSON = "application/json"
_BYTES = "application/octet-stream"
_HEADER_LENGTH = "Inference-Header-Content-Length"
_HEADER_LENGTH_SAYS = "Length of the JSON at the start of the body, in bytes; binary tensor data follows it."

_ERRORS = {
    "400": "The request breaks a rule; the message says what, where, and what is allowed.",
    "404": "No such model, or not in that version.",
    "413": "The body is larger than the model's limits.request_bytes.",
    "415": "The body has a content encoding other than identity; send it as it is.",
    "500": "The model failed.",
    "503": "Not ready, stopping, the queue is full, or the device has no memory left (these have Retry-After); or the "
    "shape is not warm and the model does not run cold ones.",
    "504": "The request took longer than the model's limits.timeout_s.",
}


def document(models: Iterable[Described], shared_memory: bool = False) -> dict[str, Any]:
    """The OpenAPI document of a server with these models; ``shared_memory`` where clients may have tensors there."""
    models = tuple(models)
    names = [model.spec.name for model in models]
    paths = _server_paths() | _model_paths(names) | (_shared_memory_paths() if shared_memory else {})
    for model in models:
        paths |= _inference_paths(model)
    requests = {
        _component(model): schemas.infer_request(model.spec.inputs, model.outputs or model.spec.outputs)
        for model in models
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Preheat",
            "version": package_version("preheat"),
            "description": "Open Inference Protocol v2 with the binary tensor extension, TorchServe's inference API, "
            "health, and what is warm.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag} for tag in ("server", "models", "infer", "predict")],
        "paths": paths,
        "components": {"schemas": COMPONENTS | schemas.tensor_data() | requests},
    }


def page(models: Iterable[Described], shared_memory: bool = False) -> str:
    """The documentation as one HTML page that loads nothing from elsewhere."""
    models = tuple(models)
    return documentation.render(
        document(models, shared_memory), {model.spec.name: (model.spec, model.plan) for model in models}
    )


def _component(model: Described) -> str:
    return f"InferRequest.{model.spec.name}"


def _server_paths() -> Schema:
    text = {"text/plain": {"schema": STRING}}
    html = {"text/html": {"schema": STRING}}
    unready = {"503": _answer("Not ready.", reference("Ready"))}
    return {
        "/v2": _get("server", "Server metadata and extensions", reference("ServerMetadata")),
        "/v2/health/live": _get("server", "The process answers", reference("Live")),
        "/v2/health/ready": _get("server", "Every model is warm as its bundle promises", reference("Ready"), unready),
        "/ping": _get(
            "server",
            "TorchServe's health check; true like /v2/health/ready",
            reference("Ping"),
            {"503": _answer("Not ready.", reference("Ping"))},
        ),
        "/models": _get("models", "The models, as TorchServe lists them", reference("ModelList")),
        "/metrics": {"get": _operation("server", "Metrics in Prometheus text format", _content("Metrics.", text))},
        "/docs": {"get": _operation("server", "This documentation as a page", _content("A page.", html))},
        "/openapi.json": _get("server", "This documentation as OpenAPI", {"type": "object"}),
        "/": {
            "get": _operation(
                "server",
                "What is missing until ready, and how each model fares; to a browser, the board of what is warm",
                _content(
                    "The status as JSON, or as a page where Accept names text/html.",
                    {_JSON: {"schema": reference("Status")}, **html},
                ),
            )
        },
    }


def _shared_memory_paths() -> Schema:
    """Triton's system shared memory extension, docs/protocol/extension_shared_memory.md."""
    root, name = "/v2/systemsharedmemory", [{"name": "region", "in": "path", "required": True, "schema": STRING}]
    refused = _errors("400", "Error")
    done = {"200": _answer("Done.", {"type": "object"})} | refused
    register = _operation("server", "Take in a region of shared memory", done)
    register["requestBody"] = {"required": True, "content": {_JSON: {"schema": reference("SharedMemory")}}}
    one, every = "Forget a region of shared memory", "Forget all regions of shared memory"
    status, regions = "The regions of shared memory", reference("SharedMemoryStatus")
    return {
        f"{root}/status": _get("server", status, regions, refused),
        f"{root}/region/{{region}}/status": _get("server", status, regions, refused, name),
        f"{root}/region/{{region}}/register": {"post": register | {"parameters": name}},
        f"{root}/region/{{region}}/unregister": {"post": _operation("server", one, done) | {"parameters": name}},
        f"{root}/unregister": {"post": _operation("server", every, done)},
    }


def _model_paths(names: list[str]) -> Schema:
    model = {"name": "model", "in": "path", "required": True, "schema": {"enum": names} if names else STRING}
    version = {"name": "version", "in": "path", "required": True, "schema": STRING}
    unready = {"503": _answer("Not ready.", reference("ModelReady"))}
    plain, torchserve = _errors("404", "Error"), _errors("404", "TorchServeError")
    paths: Schema = {}
    for base, parameters in (
        ("/v2/models/{model}", [model]),
        ("/v2/models/{model}/versions/{version}", [model, version]),
    ):
        paths[base] = _get("models", "Inputs, outputs and versions", reference("ModelMetadata"), plain, parameters)
        paths[f"{base}/ready"] = _get(
            "models", "Whether the model is warm", reference("ModelReady"), plain | unready, parameters
        )
    paths["/v2/models/{model}/shapes"] = _get(
        "models", "Plan, proof times, warm set and outcomes", reference("Shapes"), plain, [model]
    )
    for path, parameters in (
        ("/models/{model}", [model]),
        ("/models/{model}/all", [model]),
        ("/models/{model}/{version}", [model, version]),
    ):
        paths[path] = _get(
            "models", "The model, as TorchServe describes it", reference("ModelDescriptions"), torchserve, parameters
        )
    return paths


def _inference_paths(model: Described) -> Schema:
    spec = model.spec
    name, version = quote(spec.name), quote(spec.version)
    infer = {"post": _infer(model)}
    predict = {"post": _predict(spec, "post"), "put": _predict(spec, "put")}
    return {
        f"/v2/models/{name}/infer": infer,
        f"/v2/models/{name}/versions/{version}/infer": infer,
        f"/predictions/{name}": predict,
        f"/predictions/{name}/{version}": predict,
    }


def _infer(model: Described) -> Schema:
    answer = {
        "description": "The outputs, as JSON or as JSON followed by binary tensor data.",
        "headers": {_HEADER_LENGTH: {"description": _HEADER_LENGTH_SAYS, "schema": {"type": "integer", "minimum": 0}}},
        "content": {_JSON: {"schema": reference("InferResponse")}, _BYTES: {"schema": BINARY}},
    }
    operation = _operation(
        "infer", f"Run {model.spec.name} on tensors", {"200": answer} | _errors(",".join(_ERRORS), "Error")
    )
    operation["parameters"] = [
        {
            "name": _HEADER_LENGTH,
            "in": "header",
            "description": _HEADER_LENGTH_SAYS + " Needed where an input has binary_data_size.",
            "schema": {"type": "integer", "minimum": 0},
        }
    ]
    operation["requestBody"] = {
        "required": True,
        "content": {_JSON: {"schema": reference(_component(model))}, _BYTES: {"schema": BINARY}},
    }
    return operation


def _predict(spec: ModelSpec, method: str) -> Schema:
    answer = {
        "description": "What the model's handler makes of its outputs.",
        "content": {_JSON: {"schema": {}}, "text/plain": {"schema": STRING}, _BYTES: {"schema": BINARY}},
    }
    words = {"post": f"Run {spec.name} on any body that its handler takes", "put": "The same, for curl -T FILE"}
    operation = _operation("predict", words[method], {"200": answer} | _errors(",".join(_ERRORS), "TorchServeError"))
    form = {"type": "object", "properties": {"data": BINARY}, "minProperties": 1}
    operation["requestBody"] = {
        "required": True,
        "content": {_BYTES: {"schema": BINARY}, _JSON: {"schema": {}}, "multipart/form-data": {"schema": form}},
    }
    return operation


def _get(
    tag: str, summary: str, schema: Schema, others: Schema | None = None, parameters: list[Schema] | None = None
) -> Schema:
    operation = _operation(tag, summary, {"200": _answer("Answer.", schema)} | (others or {}))
    if parameters:
        operation["parameters"] = parameters
    return {"get": operation}


def _operation(tag: str, summary: str, responses: Schema) -> Schema:
    return {"tags": [tag], "summary": summary, "responses": responses}


def _answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {_JSON: {"schema": schema}}}


def _content(description: str, content: Schema) -> Schema:
    return {"200": {"description": description, "content": content}}


def _errors(codes: str, schema: str) -> Schema:
    return {code: _answer(_ERRORS[code], reference(schema)) for code in codes.split(",")}
