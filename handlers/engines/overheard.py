"""Listens to what ONNX Runtime prints while a session is made: where nodes were placed and why, it says nowhere else.

Its log goes to file descriptor 2, which is one for the whole process: whatever else is printed there meanwhile is
passed on at once, line by line, as are errors, and warnings that are not of a session.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import uuid
from collections.abc import Iterator

_ONE_LISTENER = threading.Lock()
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
# DATE TIME [I:onnxruntime:LOGGER, file.cc:89 Function] text. LOGGER is Default where it is not a session's.
_LOG = re.compile(rb"\S+ \S+ \[([VIWEF]):onnxruntime:(Default)?")
_ERRORS = (b"E", b"F")


@contextlib.contextmanager
def overheard() -> Iterator[list[str]]:
    """The lines of ONNX Runtime's log so far; complete when the block has ended."""
    with _ONE_LISTENER:
        lines: list[str] = []
        end = uuid.uuid4().hex.encode()
        heard = threading.Event()
        sys.stderr.flush()
        original = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        # A process that somebody forks meanwhile may hold the pipe open, so what ends the listening is a mark.
        reader = threading.Thread(target=_pass_on, args=(reading, original, lines, end, heard), daemon=True)
        reader.start()
        try:
            yield lines
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.write(writing, b"\n" + end + b"\n")
            os.close(writing)
            heard.wait()


def _pass_on(reading: int, original: int, lines: list[str], end: bytes, heard: threading.Event) -> None:
    with os.fdopen(reading, "rb") as pipe, os.fdopen(original, "wb", buffering=0) as output:
        for line in pipe:
            if line.strip() == end:
                heard.set()
                continue
            if line == b"\n":
                continue
            plain = _COLOUR.sub(b"", line)
            log = _LOG.match(plain)
            if log and not heard.is_set():
                lines.append(plain.decode(errors="replace").rstrip())
            if not log or log[1] in _ERRORS or (log[2] and log[1] == b"W"):
                output.write(line)
