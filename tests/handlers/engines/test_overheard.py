"""What ONNX Runtime prints while a session is made is heard; what others print meanwhile is passed on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from handlers.engines.overheard import overheard

DETAIL = b"2026-12-01 01:18:56.4 [V:onnxruntime:, session_state.cc:1 Verify] \xff detail\n"
SESSION = b"\x1b[0;93m2026-12-01 01:18:56.4 [W:onnxruntime:, inference_session.cc:1 Init] of a session\x1b[m\n"
WARNING = b"\x1b[0;93m2026-12-01 01:18:56.4 [W:onnxruntime:Default, x.cc:1 compile] Model Compile: Begin\x1b[m\n"


def test_log_lines_are_heard_and_only_details_are_kept_back(capfd: pytest.CaptureFixture[str]) -> None:
    with overheard() as lines:
        for line in (DETAIL, SESSION, WARNING, b"something else\n", b"and no end"):
            os.write(2, line)
    os.write(2, b"afterwards\n")
    assert [line.split("] ")[1] for line in lines] == ["� detail", "of a session", "Model Compile: Begin"]
    assert capfd.readouterr().err == WARNING.decode() + "something else\nand no end\nafterwards\n"


def test_an_error_inside_leaves_standard_error_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), overheard():
        raise KeyError
    os.write(2, b"here\n")
    assert capfd.readouterr().err == "here\n"


def test_a_process_started_meanwhile_that_lives_on_keeps_nobody_waiting(capfd: pytest.CaptureFixture[str]) -> None:
    with overheard():
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read(); print('late', file=sys.stderr)"],
            stdin=subprocess.PIPE,
        )
    child.communicate()
    assert child.returncode == 0
