"""What ONNX Runtime prints while a session is made is heard; what others print meanwhile is passed on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handlers.engines.overheard import overheard

DETAIL = b"2026-12-01 01:18:56.4 [V:onnxruntime:, session_state.cc:1 Verify] \xff detail\n"
SESSION = b"\x1b[0;93m2026-12-01 01:18:56.4 [W:onnxruntime:, inference_session.cc:1 Init] of a session\x1b[m\n"
WARNING = b"\x1b[0;93m2026-12-01 01:18:56.4 [W:onnxruntime:Default, x.cc:1 compile] Model Compile: Begin\x1b[m\n"
SAID = ["� detail", "of a session", "Model Compile: Begin"]
LISTEN = """
import os, sys
from handlers.engines.overheard import overheard
os.write(2, b"before\\n")
with overheard() as lines:
    sys.stdout.flush()
    for line in sys.stdin.buffer.read().splitlines(keepends=True):
        os.write(2, line)
print(*(line.split("] ")[1] for line in lines), sep=";")
"""


def test_log_lines_are_heard_and_only_details_are_kept_back(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    kept = os.dup(2)
    os.dup2(writing, 2)
    try:
        with overheard() as lines:
            for line in (DETAIL, SESSION, WARNING, b"something else\n", b"and no end"):
                os.write(2, line)
        os.write(2, b"afterwards\n")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(writing)
    assert [line.split("] ")[1] for line in lines] == SAID
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == WARNING + b"something else\nand no endafterwards\n"


def test_more_than_a_pipe_holds_keeps_nobody_waiting() -> None:
    """No other thread runs while a session is made, so nobody could empty a pipe."""
    done = subprocess.run([sys.executable, "-c", LISTEN], input=DETAIL * 5000, capture_output=True, timeout=60)
    assert done.stdout.count(b"detail") == 5000 and done.stderr == b"before\n"


def test_where_standard_error_is_a_file_all_of_it_stays_there(tmp_path: Path) -> None:
    """A process that crashes meanwhile leaves its last words."""
    with (tmp_path / "log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-c", LISTEN], input=DETAIL + WARNING, stdout=subprocess.PIPE, stderr=log
        )
    assert done.stdout.decode() == "� detail;Model Compile: Begin\n"
    assert (tmp_path / "log").read_bytes() == b"before\n" + DETAIL + WARNING


def test_an_error_inside_leaves_standard_error_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), overheard():
        raise KeyError
    os.write(2, b"here\n")
    assert capfd.readouterr().err == "here\n"
