from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_onnx_runtime_reports_to_nobody(tmp_path: Path) -> None:
    """Left alone, it makes files for that in the home directory as soon as it is imported."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    code = "import os, handlers.engines.onnx; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "1\n"
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name.lower()] == []
