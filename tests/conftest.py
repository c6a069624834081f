"""What all tests share: server processes that end with the test that asked for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from serving.process import ServerProcess

# A slow machine is no failure: no test asserts time, so none may fail of Hypothesis's deadline for one example. Every
# run makes up the same examples, so that a change is judged by what it changes; ``PREHEAT_RANDOM=1`` looks for others.
settings.register_profile("preheat", deadline=None, derandomize=not os.environ.get("PREHEAT_RANDOM"))
settings.load_profile("preheat")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def null_server() -> Iterator[ServerProcess]:
    """A server of the null model, which takes ``x`` (fp32, four axes) and returns a constant; unproven."""
    with ServerProcess(["null", "--model-store", str(REPOSITORY / "benchmarks" / "models"), "--unproven"]) as server:
        server.wait_ready(60)
        yield server


@pytest.fixture(scope="session")
def chromium() -> list[str]:
    """The beginning of a command line that starts Chromium without a screen, and with no look at the network."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking"]
    return [program, "--headless", "--no-sandbox", "--disable-gpu", *quiet]


@pytest.fixture
def start_server() -> Iterator[Callable[[Sequence[str]], ServerProcess]]:
    """Starts servers with the arguments of ``preheat serve``; every one is stopped after the test."""
    servers: list[ServerProcess] = []

    def start(arguments: Sequence[str]) -> ServerProcess:
        servers.append(ServerProcess(arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
