"""Which bundles this user made on this machine: a file of this user alone, outside of every bundle.

A bundle cannot claim to be made here; only its digest in this ledger says so. The ledger is
``$XDG_STATE_HOME/preheat/made-here`` (``~/.local/state`` where the variable is unset), one line per bundle: its digest
and the machine's identifier, so that a home directory shared between machines does not share trust.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

MACHINE_ID = Path("/etc/machine-id")  # machine-id(5)


class LedgerError(Exception):
    """A ledger that others could have written to."""


def path() -> Path:
    """Where the ledger is; it need not exist."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # XDG Base Directory Specification: a relative path is invalid and to be ignored.
    root = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return root / "preheat" / "made-here"


def remember(digest: str) -> bool:
    """Notes a bundle as made here. Where the ledger cannot be written, logs why and returns False."""
    ledger = path()
    try:
        ledger.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(ledger, flags, 0o600), "r+b") as file:
            _check(ledger, os.fstat(file.fileno()))
            fcntl.flock(file, fcntl.LOCK_EX)
            content = file.read()
            line = _line(digest)
            if line in content.splitlines():
                return True
            torn = content and not content.endswith(b"\n")  # a writer died in the middle of its line
            file.write((b"\n" if torn else b"") + line + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError, LedgerError) as error:
        log.warning("%s is not noted as made here, so it needs a digest, a signature or --trust: %s", digest, error)
        return False
    return True


def made_here(digest: str) -> bool:
    """Whether this user made the bundle on this machine; raises LedgerError where others could write to the ledger."""
    try:
        ledger = path()
        with os.fdopen(os.open(ledger, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            _check(ledger, os.fstat(file.fileno()))
            return _line(digest) in file.read().splitlines()
    except FileNotFoundError:
        return False
    except (OSError, RuntimeError) as error:
        raise LedgerError(f"{error}") from error


def _line(digest: str) -> bytes:
    try:
        machine = MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        machine = ""
    return f"{digest} {machine or '-'}".encode()


def _check(ledger: Path, found: os.stat_result) -> None:
    folder = ledger.parent.stat()
    for what, facts in ((ledger, found), (ledger.parent, folder)):
        if facts.st_uid != os.geteuid():
            raise LedgerError(f"{what} belongs to user {facts.st_uid}, not to user {os.geteuid()}")
        if stat.S_IMODE(facts.st_mode) & 0o022:
            raise LedgerError(f"{what} may be written by others; run: chmod go-w {what}")
