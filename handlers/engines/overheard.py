"""Listens to what ONNX Runtime prints while a session is made: where nodes were placed and why, it says nowhere else.

Its log goes to file descriptor 2, which is one for the whole process, and while it makes a session no other Python
thread runs. So nobody could empty a pipe meanwhile: what is printed goes to a file, and what others are to see of it is
passed on at the end. Where standard error is a file already, as in a sweep, it is read there, so that nothing is lost
with a process that crashes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_ONE_LISTENER = threading.Lock()
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
# DATE TIME [I:onnxruntime:LOGGER, file.cc:89 Function] text. LOGGER is Default where it is not a session's.
_LOG = re.compile(rb"\S+ \S+ \[([VIWEF]):onnxruntime:(Default)?")
_ERRORS = (b"E", b"F")


@contextlib.contextmanager
def overheard() -> Iterator[list[str]]:
    """The lines of ONNX Runtime's log, once the block has ended.

    All that others print goes on to standard error, as do errors, and warnings that are not of a session.
    """
    with _ONE_LISTENER:
        lines: list[str] = []
        sys.stderr.flush()
        written = _standard_error_as_a_file()
        if written is not None:
            with written as file:
                file.seek(0, os.SEEK_END)
                try:
                    yield lines
                finally:
                    sys.stderr.flush()
                    lines += [line for line, _ in _read(file) if line]
            return
        with tempfile.TemporaryFile() as file:
            original = os.dup(2)
            os.dup2(file.fileno(), 2)
            try:
                yield lines
            finally:
                sys.stderr.flush()
                os.dup2(original, 2)
                os.close(original)
                file.seek(0)
                for line, shown in _read(file):
                    if line:
                        lines.append(line)
                    os.write(2, shown)


def _standard_error_as_a_file() -> BinaryIO | None:
    """What file descriptor 2 is open on, to read it, where that is a file which may be read."""
    if not stat.S_ISREG(os.fstat(2).st_mode):
        return None
    try:
        return Path("/proc/self/fd/2").open("rb")
    except OSError:
        return None


def _read(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Each line as text where it is of ONNX Runtime's log, and what of it others are to see."""
    for line in file:
        plain = _COLOUR.sub(b"", line)
        log = _LOG.match(plain)
        hidden = log and log[1] not in _ERRORS and not (log[2] and log[1] == b"W")
        yield plain.decode(errors="replace").rstrip() if log else "", b"" if hidden else line
