"""Requests made up from the server's own OpenAPI document, right and wrong ones: none fails the server or hangs it.

``PREHEAT_SCHEMATHESIS_EXAMPLES`` (default 5) sets how many requests are made up per operation and phase, and
``PREHEAT_SCHEMATHESIS_SEED`` (default 1) which.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from serving.process import ServerProcess

# A schema cannot say that a tensor has as many elements as its shape, nor that a handler takes only some bodies, so a
# request that fits it may rightly be refused.
NOT_PROMISED = "positive_data_acceptance"
MODELS = ("echo-fp32", "pair", "counter")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_made_up_request_fails_or_hangs_the_server(echo_store: Path, tmp_path: Path) -> None:
    with ServerProcess(["--model-store", str(echo_store), "--unproven", "--allow-client-shm"]) as server:
        server.wait_ready(60)
        examples = os.environ.get("PREHEAT_SCHEMATHESIS_EXAMPLES", "5")
        seed = os.environ.get("PREHEAT_SCHEMATHESIS_SEED", "1")
        others = f"/(echo-(?!{'|'.join(name.removeprefix('echo-') for name in MODELS)})[a-z0-9]+)(/|$)"
        command = [
            *(Path(sys.executable).parent / "schemathesis", "run", f"{server.url}/openapi.json"),
            *("--checks", "all", "--exclude-checks", NOT_PROMISED, "--exclude-path-regex", others),
            *("--phases", "coverage,fuzzing", "--max-examples", examples, "--request-timeout", "10"),
            *("--seed", seed, "--continue-on-failure", "--no-color"),
        ]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        made = re.search(r"(\d[\d,]*) generated", ran.stdout)
        assert made is not None and int(made[1].replace(",", "")) >= 300, ran.stdout
        assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
        assert 'code="500"' not in httpx.get(f"{server.url}/metrics").text
