"""How an error becomes an answer: status code, headers, and a body in the words of the protocol that was spoken."""

from __future__ import annotations

import http
from typing import Any, NamedTuple

import orjson

from handlers.errors import InvalidInput, OutOfDeviceMemory, UnplannedShape
from serving.http.request import BodyTooLarge, EncodingRefused, Headers
from serving.lanes.job import ClientGone, ExecutionFailed, LaneClosed, QueueFull, RequestTimedOut
from serving.model import NotReady
from serving.repository import ModelNotFound, VersionNotFound

JSON: Headers = (("content-type", "application/json"),)
CLIENT_GONE = 499  # nginx's code for a client that hung up; it is counted, never sent


STATUS: dict[type[Exception], int] = {
    InvalidInput: 400,
    ModelNotFound: 404,
    BodyTooLarge: 413,
    EncodingRefused: 415,
    ClientGone: CLIENT_GONE,
    ExecutionFailed: 500,
    UnplannedShape: 503,
    NotReady: 503,
    QueueFull: 503,
    LaneClosed: 503,
    OutOfDeviceMemory: 503,
    RequestTimedOut: 504,
}
EXPECTED = tuple(STATUS)
# Another try may do better; one with a shape that is not served will not.
_RETRY_LATER = (NotReady, QueueFull, LaneClosed, OutOfDeviceMemory)

# TorchServe's names for what went wrong (frontend/server/.../util/NettyUtils.java, "type" of an error response).
_TORCHSERVE_TYPES = {
    400: "BadRequestException",
    404: "ModelNotFoundException",
    413: "RequestEntityTooLargeException",
    415: "UnsupportedMediaTypeException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
    504: "RequestTimeoutException",
}


class Answer(NamedTuple):
    """A complete response."""

    status: int
    body: bytes
    headers: Headers = JSON


def failure(error: Exception, protocol: str) -> Answer:
    """The answer to a request that ended with one of ``EXPECTED``, in Open Inference Protocol or TorchServe form."""
    status = next(code for kind, code in STATUS.items() if isinstance(error, kind))
    document: dict[str, Any] = {"error": str(error)}
    if protocol == "torchserve":
        kind = _TORCHSERVE_TYPES.get(status, http.HTTPStatus(status).phrase if status != CLIENT_GONE else "ClientGone")
        kind = "ModelVersionNotFoundException" if isinstance(error, VersionNotFound) else kind
        document = {"code": status, "type": kind, "message": str(error)}
    if isinstance(error, UnplannedShape):
        document["shapes"] = list(error.nearest)
    headers = (*JSON, ("retry-after", "1")) if isinstance(error, _RETRY_LATER) else JSON
    return Answer(status, orjson.dumps(document), headers)


def plain(result: Any) -> Answer:
    """A handler's result as a body: bytes and text as they are, anything else as JSON."""
    if isinstance(result, (bytes, bytearray, memoryview)):
        return Answer(200, bytes(result), (("content-type", "application/octet-stream"),))
    if isinstance(result, str):
        return Answer(200, result.encode(), (("content-type", "text/plain; charset=utf-8"),))
    return Answer(200, orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY), JSON)
