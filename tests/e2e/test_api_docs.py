"""What docs/api.md shows runs as it stands, against models of the same names and tensors that answer zeros."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.process import ServerProcess

DOCS = Path(__file__).resolve().parents[2] / "docs" / "api.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
BLOCKS = re.findall(r"```sh\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)

_MODEL = """
name: {name}
handler: handler.py
engine: {{kind: python, source: "zeros.py:Zeros"}}
inputs: [{{name: image, dtype: float32, dims: [batch, 1, height, width]}}]
outputs: [{{name: cells, dtype: float32, dims: [batch, 13, rows, columns]}}]
shapes: {{list: ["image=1x1x64x128:fp32"]}}
"""

_ZEROS = """
import numpy as np


class Zeros:
    def run(self, inputs):
        batch, _, height, width = inputs["image"].shape
        return {"cells": np.zeros((batch, 13, height // 4, width // 4), np.float32)}
"""

_HANDLER = """
import numpy as np

from handlers.errors import InvalidInput
from handlers.handler import Handler, Prepared


class AnyPicture(Handler):
    def preprocess(self, payload):
        if payload.body != b"a picture":
            raise InvalidInput("not the picture that the test made")
        return Prepared({"image": np.zeros((1, 1, 64, 128), np.float32)})
"""


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = tmp_path_factory.mktemp("documented-store")
    for name in ("digits", "text-detector"):
        (store / name).mkdir()
        (store / name / "model.yaml").write_text(_MODEL.format(name=name))
        (store / name / "zeros.py").write_text(_ZEROS)
        (store / name / "handler.py").write_text(_HANDLER)
    with ServerProcess(["--model-store", str(store), "--unproven", "--allow-client-shm"]) as server:
        server.wait_ready(60)
        yield server


@pytest.mark.skipif(shutil.which("curl") is None, reason="the documented lines need curl")
@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[0][:40] for block in BLOCKS])
def test_the_lines_run(block: str, documented: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"a picture")
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    addresses = {"PREHEAT": documented.url, "ADMIN": documented.admin_url, "TOKEN_FILE": documented.admin_token_file}
    environment = {**os.environ, **addresses, "CURL_HOME": str(tmp_path)}
    ran = subprocess.run(["sh", "-e", "-c", block], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stdout.decode(errors="replace") + ran.stderr.decode(errors="replace")


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_run(program: str, documented: ServerProcess) -> None:
    address = "127.0.0.1:8000"
    assert address in program
    program = program.replace(address, documented.url.removeprefix("http://"))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "(1, 13, 16, 32)\n"


def test_every_endpoint_has_a_line() -> None:
    text = "\n".join(BLOCKS)
    for path in (
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/digits", "/v2/models/digits/versions/1"),
        *("/v2/models/digits/ready", "/v2/models/digits/infer", "/v2/models/digits/shapes", "/ping", "/models"),
        *("/models/digits", "/predictions/digits", "/predictions/digits/1", "/metrics", "/"),
    ):
        assert re.search(rf"\$PREHEAT{re.escape(path)}(\s|$)", text, re.MULTILINE), path
