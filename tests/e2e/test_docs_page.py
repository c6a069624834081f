"""The commands that a server's /docs page shows run as they stand."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from handlers.shapes import DTYPES


@pytest.mark.skipif(shutil.which("curl") is None, reason="the shown commands need curl")
def test_the_shown_commands_run(echo_server: str, tmp_path: Path) -> None:
    page = httpx.get(f"{echo_server}/docs").text
    shown = dict(re.findall(r"<h3>(.+?)</h3><pre><code>(.+?)</code></pre>", page, re.DOTALL))
    assert {"pair", "counter", *(f"echo-{dtype}" for dtype in DTYPES)} <= shown.keys()
    (tmp_path / "photo.jpg").write_bytes(b"a picture")
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    environment = {**os.environ, "PREHEAT": echo_server, "CURL_HOME": str(tmp_path)}
    lines = "\n".join(html.unescape(commands) for commands in shown.values())
    ran = subprocess.run(["sh", "-e", "-c", lines], cwd=tmp_path, env=environment, capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stdout.decode(errors="replace") + ran.stderr.decode(errors="replace")
    assert ran.stdout.count(b'"model_name":"echo-') == len(DTYPES) - 1  # bf16 is answered in bytes, to a file
