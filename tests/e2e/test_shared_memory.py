"""Tensors in shared memory, as Triton's own client uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
import tritonclient.http as client
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from serving.bench import BenchError, run
from serving.process import ServerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory is Linux's")
X = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


@pytest.fixture(scope="module")
def url(echo_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of ``pair`` and of ``echo-fp32``, which takes tensors of any size here."""
    store = tmp_path_factory.mktemp("shared-memory-store")
    for name in ("pair", "echo-fp32"):
        shutil.copytree(echo_store / name, store / name)
    description = store / "echo-fp32" / "model.yaml"
    description.write_text(description.read_text().replace("request_bytes: 65536", "request_bytes: 67108864"))
    arguments = ["--model-store", str(store), "--unproven", "--allow-client-shm"]
    with ServerProcess([*arguments, "--admin-port", "-1"]) as server:
        server.wait_ready(60)
        yield server.url


@pytest.fixture
def server(url: str) -> Iterator[client.InferenceServerClient]:
    with client.InferenceServerClient(url.removeprefix("http://")) as connected:
        yield connected
        connected.unregister_system_shared_memory()


@pytest.fixture
def region() -> Iterator[Any]:
    name = f"preheat-test-{uuid4().hex}"
    handle = shm.create_shared_memory_region("region", f"/{name}", 4096)
    shm.set_shared_memory_region(handle, [X])
    yield handle, f"/{name}"
    shm.destroy_shared_memory_region(handle)


def shared(size: int = X.nbytes, offset: int = 0) -> client.InferInput:
    made = client.InferInput("x", list(X.shape), "FP32")
    made.set_shared_memory("region", size, offset)
    return made


def test_tensors_go_both_ways(server: client.InferenceServerClient, region: Any) -> None:
    assert "system_shared_memory" in server.get_server_metadata()["extensions"]
    handle, key = region
    server.register_system_shared_memory("region", key, 4096)
    assert server.get_system_shared_memory_status() == [{"name": "region", "key": key, "offset": 0, "byte_size": 4096}]
    wanted = client.InferRequestedOutput("y")
    wanted.set_shared_memory("region", 1000, 2048)
    result = server.infer("echo-fp32", [shared()], outputs=[wanted])
    told = result.get_output("y")
    assert told is not None and told["parameters"]["shared_memory_byte_size"] == X.nbytes
    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, X.shape, 2048), X)
    shm.set_shared_memory_region(handle, [X + 1])
    result = server.infer("echo-fp32", [shared()])
    np.testing.assert_array_equal(result.as_numpy("y"), X + 1)
    server.unregister_system_shared_memory("region")
    with pytest.raises(InferenceServerException, match="no shared memory region 'region' is registered"):
        server.infer("echo-fp32", [shared()])


def test_large_tensors_go_both_ways_too(server: client.InferenceServerClient) -> None:
    """They are copied on another thread."""
    x = np.random.default_rng(0).random((1, 2, 1 << 20), np.float32)
    name = f"/preheat-test-{uuid4().hex}"
    handle = shm.create_shared_memory_region("large", name, 3 * x.nbytes)
    try:
        shm.set_shared_memory_region(handle, [x])
        server.register_system_shared_memory("large", name, 3 * x.nbytes)
        sent = client.InferInput("x", list(x.shape), "FP32")
        sent.set_shared_memory("large", x.nbytes)
        wanted = client.InferRequestedOutput("y")
        wanted.set_shared_memory("large", x.nbytes, x.nbytes)
        server.infer("echo-fp32", [sent], outputs=[wanted])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, x.shape, x.nbytes), x)
        wanted.set_shared_memory("large", x.nbytes - 1, x.nbytes)
        with pytest.raises(InferenceServerException, match="shared_memory_byte_size is"):
            server.infer("echo-fp32", [sent], outputs=[wanted])
        os.truncate(f"/dev/shm{name}", 8)
        with pytest.raises(InferenceServerException, match="made smaller"):
            server.infer("echo-fp32", [sent])
    finally:
        shm.destroy_shared_memory_region(handle)


def test_errors_say_what_is_wrong(server: client.InferenceServerClient, region: Any) -> None:
    with pytest.raises(InferenceServerException, match="No such file"):
        server.register_system_shared_memory("region", "/preheat-there-is-none", 10)
    server.register_system_shared_memory("region", region[1], 4096)
    with pytest.raises(InferenceServerException, match="registered already"):
        server.register_system_shared_memory("region", region[1], 4096)
    wanted = client.InferRequestedOutput("y")
    for size, says in ((47, "has 48 bytes; shared_memory_byte_size is 47"), (5000, "more than it has")):
        wanted.set_shared_memory("region", size)
        with pytest.raises(InferenceServerException, match=says):
            server.infer("echo-fp32", [shared()], outputs=[wanted])
    with pytest.raises(InferenceServerException, match="no shared memory region 'another'"):
        server.get_system_shared_memory_status("another")


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"key": 5, "byte_size": 1}', '{"key": "k", "byte_size": 0}'])
def test_a_registration_that_breaks_a_rule_is_refused(url: str, body: str) -> None:
    answer = httpx.post(f"{url}/v2/systemsharedmemory/region/r/register", content=body)
    assert answer.status_code == 400 and "shared memory" in answer.json()["error"]


def test_load_can_use_it(url: str) -> None:
    result = run(url, "pair", requests=20, concurrency=2, first=10, encoding="shared-memory")
    assert len(result.samples) == 20 and not result.errors
    assert httpx.get(f"{url}/v2/systemsharedmemory/status").json() == []


def test_a_server_shares_nothing_unless_told_to(echo_server: str, region: Any) -> None:
    with client.InferenceServerClient(echo_server.removeprefix("http://")) as other:
        assert "system_shared_memory" not in other.get_server_metadata()["extensions"]
        for use in (
            lambda: other.register_system_shared_memory("region", region[1], 4096),
            lambda: other.get_system_shared_memory_status(),
            lambda: other.infer("echo-fp32", [shared()]),
        ):
            with pytest.raises(InferenceServerException, match="--allow-client-shm"):
                use()
    with pytest.raises(BenchError, match="takes no shared memory .* --allow-client-shm"):
        run(echo_server, "pair", requests=1, encoding="shared-memory")


@pytest.mark.parametrize("more", [["--processes", "2"], ["--devices", "0"]])
def test_processes_that_share_a_port_cannot_share_regions(echo_store: Path, more: list[str]) -> None:
    command = ["serve", "--model-store", str(echo_store), "--unproven", "--allow-client-shm", *more]
    ran = subprocess.run([sys.executable, "-m", "serving", *command], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "--allow-client-shm is for one process" in ran.stderr


def test_pages_in_browsers_are_refused(url: str, region: Any) -> None:
    asked = f"{url}/v2/systemsharedmemory/region/r/register"
    answer = httpx.post(asked, json={"key": region[1], "byte_size": 1}, headers={"origin": "http://elsewhere.example"})
    assert answer.status_code == 400 and "programs on the same host" in answer.json()["error"]


def test_load_that_is_told_to_end_leaves_nothing(url: str) -> None:
    status = f"{url}/v2/systemsharedmemory/status"
    options = ["--model", "pair", "--encoding", "shared-memory", "--requests", "10000000"]
    with subprocess.Popen([sys.executable, "-m", "serving", "bench", url, *options], stderr=subprocess.DEVNULL) as load:
        while not (found := httpx.get(status).json()):
            assert load.poll() is None
        load.terminate()
    (region,) = found
    assert httpx.get(status).json() == [] and not Path(f"/dev/shm{region['key']}").exists()
