"""Closed-loop load from wrk (Debian's package), which costs so little that it does not slow the server down."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("wrk.lua")


class WrkError(Exception):
    """wrk is not to be had, or did not run."""


@dataclass(frozen=True)
class Load:
    """One run of wrk. Times are in seconds; ``errors`` are answers other than 2xx and 3xx, failed connections, reads
    and writes, and time-outs together."""

    requests: int
    seconds: float
    errors: int
    p50: float
    p95: float
    p99: float
    max: float

    @property
    def per_second(self) -> float:
        """Good answers a second."""
        return max(0, self.requests - self.errors) / self.seconds


def require_wrk() -> None:
    """Installs wrk where it is missing and this user may; raises WrkError where it cannot be had."""
    if shutil.which("wrk") is None:
        try:
            subprocess.run(["apt-get", "install", "--yes", "--quiet", "wrk"], check=True, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            raise WrkError("wrk is not installed, and apt-get could not install it") from error


def post(url: str, body: Path, headers: Mapping[str, str], connections: int, duration: int, core: int) -> Load:
    """Posts the file over and over for ``duration`` seconds from one thread on one core."""
    command = ["taskset", "--cpu-list", str(core), "wrk", "--threads=1", f"--connections={connections}"]
    command += [f"--duration={duration}s", "--timeout=30s", f"--script={SCRIPT}", url, "--", str(body)]
    command += [f"{name}={value}" for name, value in headers.items()]
    answer = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in answer.stdout.splitlines() if line.startswith("RESULT ")]
    if answer.returncode or not lines:
        raise WrkError(f"wrk on {url} ended with {answer.returncode}: {answer.stdout}{answer.stderr}".strip())
    found = json.loads(lines[0].removeprefix("RESULT "))
    return Load(
        requests=found["requests"],
        seconds=found["duration"] / 1e6,
        errors=sum(found[kind] for kind in ("status", "connect", "read", "write", "timeout")),
        p50=found["p50"] / 1e6,
        p95=found["p95"] / 1e6,
        p99=found["p99"] / 1e6,
        max=found["max"] / 1e6,
    )
