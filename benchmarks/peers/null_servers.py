"""Every server that the overhead benchmark compares, each with the null model: how to start it, and how each kind of
request looks in its own protocol. All of them decode the tensor into a NumPy array, the bare application apart."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from benchmarks.peers.environment import environment
from benchmarks.preheat import STORE, serve_command, warm
from handlers.shapes import Shape
from serving.bench.traffic import tensor_asks

HERE = Path(__file__).parent
APPS = HERE / "apps"

SMALL, BINARY, JSON = "small JSON", "602 KB tensor as bytes", "the same tensor as JSON"
WORKLOADS = (SMALL, BINARY, JSON)


@dataclass(frozen=True)
class Request:
    """A POST request: where to, with which headers and body; ``broken`` is a body that a server which decodes must
    refuse."""

    path: str
    body: bytes
    broken: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NullServer:
    """``command`` makes the command line, given the port and an empty folder for the server's files."""

    name: str
    requests: Mapping[str, Request]
    command: Callable[[int, Path], list[str]]
    packages: str | None = None  # the name of its requirements, None for what runs from this environment
    decodes: bool = True


def null_servers() -> tuple[NullServer, ...]:
    """The server of this project first, then the peers."""
    return (
        NullServer("Preheat", _protocol("/v2/models/null/infer", "/v2/models/null/infer"), _preheat("null")),
        NullServer(
            "Preheat, on the lane's thread",
            _protocol("/v2/models/null-lane/infer", "/v2/models/null-lane/infer"),
            _preheat("null-lane"),
        ),
        NullServer("uvicorn, bare ASGI", _protocol("/", "/", (SMALL, BINARY)), _app("uvicorn"), "uvicorn", False),
        NullServer("FastAPI", _raw("/json", "/bytes"), _app("fastapi"), "fastapi"),
        NullServer("MLServer", _raw("/v2/models/null/infer", "/bytes"), _mlserver, "mlserver"),
        NullServer("LitServe", _raw("/predict", "/predict", upload=True), _app("litserve"), "litserve"),
        NullServer("TorchServe", _raw("/predictions/null", "/predictions/null"), _torchserve, "torchserve"),
    )


def _bodies() -> tuple[bytes, bytes, bytes]:
    """The small request in JSON, the large tensor's bytes, and the large request in JSON."""
    small = {"name": "x", "shape": [1, 1, 2, 2], "datatype": "FP32", "data": [0.1, 0.2, 0.3, 0.4]}
    values = np.random.default_rng(0).random((1, 3, 224, 224), dtype=np.float32)
    large = {"name": "x", "shape": list(values.shape), "datatype": "FP32", "data": values.ravel()}
    texts = [orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY) for tensor in (small, large)]
    return texts[0], values.tobytes(), texts[1]


def _json_requests(path: str) -> dict[str, Request]:
    """Open Inference Protocol bodies in JSON; the broken ones announce a row more than there is."""
    small, _, large = _bodies()
    headers = {"Content-Type": "application/json"}
    return {
        SMALL: Request(path, small, small.replace(b"[1,1,2,2]", b"[1,1,3,2]"), headers),
        JSON: Request(path, large, large.replace(b"224,224]", b"225,224]"), headers),
    }


def _protocol(json_path: str, binary_path: str, workloads: tuple[str, ...] = WORKLOADS) -> dict[str, Request]:
    """JSON, and the binary tensor extension as clients send it: the tensor right behind the request's JSON."""
    (ask,) = tensor_asks("null", [(Shape.parse("x=1x3x224x224:fp32"), 1.0)])
    head, raw = (bytes(part) for part in ask.body)
    head = head.rstrip()
    headers = {**ask.headers, "Inference-Header-Content-Length": str(len(head))}
    found = _json_requests(json_path) | {BINARY: Request(binary_path, head + raw, head + raw[:-4], headers)}
    return {name: found[name] for name in workloads}


def _raw(json_path: str, binary_path: str, upload: bool = False) -> dict[str, Request]:
    _, raw, _ = _bodies()
    headers = {"Content-Type": "multipart/form-data; boundary=xxx" if upload else "application/octet-stream"}
    before = b'--xxx\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' if upload else b""
    after = b"\r\n--xxx--\r\n" if upload else b""
    binary = Request(binary_path, before + raw + after, before + raw[:-4] + after, headers)
    return _json_requests(json_path) | {BINARY: binary}


def _app(name: str) -> Callable[[int, Path], list[str]]:
    return lambda port, _: [str(environment(name) / "python"), str(APPS / f"{name}_app.py"), str(port)]


def _mlserver(port: int, folder: Path) -> list[str]:
    (folder / "null_model.py").write_bytes((APPS / "mlserver" / "null_model.py").read_bytes())
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        "parallel_workers": 0,  # in the server's own process: the fastest for a model that costs nothing
        "debug": False,
    }
    (folder / "settings.json").write_bytes(orjson.dumps(settings))
    (folder / "model-settings.json").write_bytes(orjson.dumps({"name": "null", "implementation": "null_model.Null"}))
    return [str(environment("mlserver") / "mlserver"), "start", str(folder)]


def _torchserve(port: int, folder: Path) -> list[str]:
    tools = environment("torchserve")
    archive = [str(tools / "torch-model-archiver"), "--model-name", "null", "--version", "1.0", "--force"]
    archive += ["--handler", str(APPS / "torchserve" / "null_handler.py"), "--export-path", str(folder)]
    subprocess.run(archive, check=True, capture_output=True)
    properties = {
        "inference_address": f"http://127.0.0.1:{port}",
        "management_address": f"http://127.0.0.1:{port + 1}",
        "metrics_address": f"http://127.0.0.1:{port + 2}",
        "grpc_inference_port": port + 3,
        "grpc_management_port": port + 4,
        "default_workers_per_model": 1,
        "job_queue_size": 1000,
        "max_request_size": 16 << 20,
        "max_response_size": 16 << 20,
        "disable_token_authorization": "true",
        "disable_system_metrics": "true",
    }
    (folder / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command = [str(tools / "torchserve"), "--start", "--foreground", "--no-config-snapshots"]
    command += ["--model-store", str(folder), "--models", "null=null.mar"]
    return [*command, "--ts-config", str(folder / "config.properties")]


def _preheat(model: str) -> Callable[[int, Path], list[str]]:
    def command(port: int, folder: Path) -> list[str]:
        warm([model], STORE, folder / "bundle", core=0)
        return serve_command([model], STORE, folder / "bundle", port)

    return command
