"""Everything on the serving port that does not run a model: health, metadata, shapes, metrics, documentation."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from importlib.metadata import version as package_version
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from handlers.errors import InvalidInput
from handlers.shapes import DTYPES, Shape
from handlers.spec import TensorSpec
from serving.beside import ProcessEnded
from serving.http import board, openapi
from serving.http.answers import failure
from serving.http.sharedmemory import Regions
from serving.http.sharedroutes import shared_memory_routes
from serving.metrics.metrics import CONTENT_TYPE
from serving.model import ServedModel
from serving.repository import ModelNotFound, Repository
from serving.steps import in_steps
from warmup.proof import ShapeProof

log = logging.getLogger("preheat.http")

PLATFORMS = {"torch": "pytorch", "onnx": "onnxruntime_onnx", "python": "python"}


def application(repository: Repository, regions: Regions | None = None) -> Starlette:
    """The pages of a repository; ``regions`` where clients may share memory."""
    extensions = ["binary_tensor_data", "shapes", *(["system_shared_memory"] if regions is not None else [])]

    async def server(request: Request) -> Response:
        return _json({"name": "preheat", "version": package_version("preheat"), "extensions": extensions})

    async def live(request: Request) -> Response:
        return _json({"live": True})

    async def ready(request: Request) -> Response:
        return _json(repository.why_not_ready(), 200 if repository.ready else 503)

    async def ping(request: Request) -> Response:
        return _json({"status": "Healthy" if repository.ready else "Unhealthy"}, 200 if repository.ready else 503)

    async def metadata(request: Request) -> Response:
        model = _model(repository, request)
        return _json(
            {
                "name": model.name,
                "versions": [model.version],
                "platform": PLATFORMS[model.spec.engine.kind],
                "inputs": [_tensor(tensor) for tensor in model.spec.inputs],
                "outputs": [_tensor(tensor) for tensor in model.outputs],
            }
        )

    async def model_ready(request: Request) -> Response:
        model = _model(repository, request)
        up = model.ready and not repository.draining
        return _json({"name": model.name, "ready": up, "state": model.state.value}, 200 if up else 503)

    async def shapes(request: Request) -> Response:
        model = _model(repository, request)
        await in_steps(model.flush_metrics())
        return _json(shape_board(model))

    async def list_models(request: Request) -> Response:
        return _json({"models": [{"modelName": model.name, "modelUrl": model.name} for model in repository.models()]})

    async def describe_model(request: Request) -> Response:
        return _json([_management(_model(repository, request))])

    async def metrics(request: Request) -> Response:
        await repository.flush_metrics()
        return Response(await repository.metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    async def specification(request: Request) -> Response:
        return _json(openapi.document(repository.models(), regions is not None))

    async def documentation(request: Request) -> Response:
        return Response(openapi.page(repository.models(), regions is not None), media_type="text/html")

    async def status(request: Request) -> Response:
        await repository.flush_metrics()
        if "text/html" in request.headers.get("accept", ""):
            return Response(board.render(_board(repository)), headers=board.HEADERS, media_type="text/html")
        document = {**repository.why_not_ready(), "serving": [_summary(model) for model in repository.models()]}
        return _json(document, headers={"vary": "accept"})

    async def not_found(request: Request, error: Exception) -> Response:
        answer = failure(error, "torchserve" if request.url.path.startswith("/models") else "oip")
        return Response(answer.body, answer.status, dict(answer.headers))

    async def invalid(request: Request, error: Exception) -> Response:
        return _json({"error": str(error)}, 400)

    async def unreadable(request: Request, error: Exception) -> Response:
        log.error("the metrics of all processes cannot be read: %s", error)
        return _json({"error": str(error)}, 503)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            for path, find in _INFERENCE.items():
                if request.url.path.startswith(path):
                    return _unknown_inference(repository, request, find)
        return _json({"error": error.detail}, error.status_code, error.headers)

    return Starlette(
        routes=[
            Route("/", status),
            Route("/v2", server),
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
            Route("/v2/models/{model}", metadata),
            Route("/v2/models/{model}/versions/{version}", metadata),
            Route("/v2/models/{model}/ready", model_ready),
            Route("/v2/models/{model}/versions/{version}/ready", model_ready),
            Route("/v2/models/{model}/shapes", shapes),
            Route("/ping", ping),
            Route("/models", list_models),
            Route("/models/{model}", describe_model),
            Route("/models/{model}/all", describe_model),
            Route("/models/{model}/{version}", describe_model),
            Route("/metrics", metrics),
            Route("/openapi.json", specification),
            Route("/docs", documentation),
            *shared_memory_routes(regions),
        ],
        exception_handlers={
            ModelNotFound: not_found,
            InvalidInput: invalid,
            ProcessEnded: unreadable,
            HTTPException: refused,
        },
    )


def shape_board(model: ServedModel) -> dict[str, Any]:
    """The plan, what was proven of it, what is warm, and what requests met; times in seconds."""
    proofs = {proof.shape: proof for proof in model.proof} if model.proof else {}
    rows = [_row(planned.shape, planned.weight, proofs.get(planned.shape), model) for planned in model.plan]
    met_cold = model.cold.met()
    return {
        "name": model.name,
        "version": model.version,
        "state": model.state.value,
        "cold": model.spec.cold,
        "coverage": model.coverage,
        "outcomes": {outcome: model.recorder.outcomes[outcome] for outcome in ("warm", "padded", "cold")},
        "shapes": rows,
        "learnt": [_row(shape, 0.0, proof, model) for shape, proof in model.learnt.items()],
        "met_cold": {text: seen.count for text, seen in met_cold.items()},
        "met_cold_at": {
            text: {"first": _moment(seen.first), "last": _moment(seen.last)} for text, seen in met_cold.items()
        },
    }


def _row(shape: Shape, weight: float, proof: ShapeProof | None, model: ServedModel) -> dict[str, Any]:
    return {
        "shape": shape.text,
        "weight": weight,
        "proven": bool(proof and proof.proven),
        "warm": shape in model.warm,
        "cold_seconds": proof.cold_seconds if proof else None,
        "first_seconds": proof.first_seconds if proof else None,
        "steady_seconds": proof.steady_seconds if proof else None,
        "reason": proof.reason if proof else "",
    }


def _moment(seconds: float) -> str:
    """Seconds since the epoch in ISO 8601, in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _board(repository: Repository) -> board.Board:
    """What the page at ``/`` shows."""
    cards = tuple(
        board.Card(
            shapes=shape_board(model),
            axis=str(model.spec.inputs[0].dims[0]) if model.spec.inputs[0].dims else "",
            error=model.error,
            recent=model.recorder.recent(),
            waiting=model.depth,
            running=model.running,
        )
        for model in repository.models()
    )
    bundle = repository.bundle
    return board.Board(
        ready=repository.ready,
        draining=repository.draining,
        bundle=bundle.digest if bundle else "",
        identity=bundle.identity if bundle else {},
        version=package_version("preheat"),
        cards=cards,
    )


def _summary(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": model.version,
        "state": model.state.value,
        "coverage": round(model.coverage, 6),
        "shapes": {"planned": len(model.plan), "warm": len(model.warm)},
        "outcomes": dict(model.recorder.outcomes),
        "queue": model.depth,
        "running": model.running,
    }


def _management(model: ServedModel) -> dict[str, Any]:
    """The fields of TorchServe's "describe model" that mean something here."""
    return {
        "modelName": model.name,
        "modelVersion": model.version,
        "modelUrl": model.name,
        "runtime": "python",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": max((group.largest for group in model.warm.groups()), default=1),
        "maxBatchDelay": model.spec.batching.max_delay_ms,
        "loadedAtStartup": True,
        "workers": [{"id": "0", "status": "READY" if model.ready else "UNLOADING" if model.error else "LOADING"}],
        "jobQueueStatus": {
            "remainingCapacity": model.spec.batching.queue - model.depth,
            "pendingRequests": model.depth,
        },
    }


_INFERENCE: dict[str, tuple[str, int, int]] = {"/v2/models/": ("oip", 3, 5), "/predictions/": ("torchserve", 2, 3)}


def _unknown_inference(repository: Repository, request: Request, find: tuple[str, int, int]) -> Response:
    """Why an inference path has no model: the name, the version, or the rest of the path."""
    protocol, name_at, version_at = find
    parts = request.url.path.split("/")
    name = parts[name_at]
    version = parts[version_at] if len(parts) > version_at and (protocol != "oip" or parts[4] == "versions") else None
    try:
        repository.get(name, version)
    except ModelNotFound as error:
        answer = failure(error, protocol)
        return Response(answer.body, answer.status, dict(answer.headers))
    methods = ("POST", "PUT") if protocol == "torchserve" else ("POST",)
    if request.method not in methods and (protocol == "torchserve" or parts[-1] == "infer"):
        return _json({"error": "Method Not Allowed"}, 405, {"allow": ", ".join(methods)})
    return _json({"error": f"no such resource: {request.url.path}"}, 404)


def _model(repository: Repository, request: Request) -> ServedModel:
    return repository.get(request.path_params["model"], request.path_params.get("version"))


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    dims = [dim if isinstance(dim, int) else -1 for dim in tensor.dims]
    return {"name": tensor.name, "datatype": DTYPES[tensor.dtype][1], "shape": dims}


def _json(document: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(orjson.dumps(document), status, headers, "application/json")
