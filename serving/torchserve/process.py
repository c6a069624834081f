"""A TorchServe process under a handle: started, waited for until its workers are ready, stopped. Needs Java."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from serving.torchserve.properties import PROPERTIES, parse

_POLL_SECONDS = 0.1  # another server's readiness is no event to wait for
_LAST_LINES = 25
_FIRST_PORT, _FIRST_CLIENT_PORT = 10000, 32768  # net.ipv4.ip_local_port_range of Linux begins with the second


class TorchServeFailed(Exception):
    """TorchServe ended, or was not ready in time; the message ends with the last lines of its log."""


class TorchServeProcess:
    """TorchServe with the ``config.properties`` of a model store, with its logs and all else it writes in ``folder``.

    >>> with TorchServeProcess(Path("torchserve"), Path("/tmp/run")) as server:
    ...     server.wait_ready(120)
    ...     print(server.url)
    """

    def __init__(self, store: Path, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        found = parse((store / PROPERTIES).read_text(encoding="latin-1"))
        self.url = found["inference_address"]
        self.management_url = found["management_address"]
        self.metrics_url = found["metrics_address"]
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ts.model_server", "--start", "--foreground", "--no-config-snapshots"]
        # TorchServe's command refuses to start where its pid file, in the directory for temporary files, names another.
        self._process = subprocess.Popen(
            [*command, "--ts-config", str((store / PROPERTIES).absolute())],
            cwd=folder,
            env={**os.environ, **(environment or {}), "TMPDIR": str(folder), "TEMP": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started = time.perf_counter()
        self.log: list[str] = []
        self._grown = threading.Condition()
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_answering(self, timeout: float) -> float:
        """Waits until ``/ping`` says healthy, and says how many seconds after the start; raises TorchServeFailed.

        TorchServe says so before any worker has loaded its model: see ``wait_ready``.
        """
        return self._wait(lambda: _status(f"{self.url}/ping") == 200, "did not answer", timeout)

    def wait_ready(self, timeout: float) -> float:
        """Waits until every worker of every model is ready, and says how many seconds after the start."""
        return self._wait(self._ready, "was not ready", timeout)

    def workers(self, model: str) -> list[str]:
        """The states of a model's workers, ``READY`` or ``UNLOADED``."""
        (described,) = _json(f"{self.management_url}/models/{model}")
        return [worker["status"] for worker in described["workers"]]

    def metrics(self) -> str:
        """What Prometheus would scrape."""
        with urllib.request.urlopen(f"{self.metrics_url}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def wait_logged(self, text: str, timeout: float) -> str:
        """Waits for a line with ``text`` in the log, and returns it; raises TorchServeFailed after ``timeout``."""
        with self._grown:
            self._grown.wait_for(lambda: any(text in line for line in self.log), timeout)
            for line in self.log:
                if text in line:
                    return line
        raise TorchServeFailed("\n".join([f"TorchServe did not log {text!r}", *self.log[-_LAST_LINES:]]))

    def stop(self, timeout: float = 30) -> None:
        """Ends TorchServe and its workers, and waits; what is still there after ``timeout`` seconds is killed."""
        self._signal(signal.SIGTERM)
        self._reader.join(timeout)  # its output ends with Java, which ends after the command that started it
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def __enter__(self) -> TorchServeProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _ready(self) -> bool:
        if _status(f"{self.url}/ping") != 200:
            return False
        names = [model["modelName"] for model in _json(f"{self.management_url}/models")["models"]]
        states = [self.workers(name) for name in names]
        return bool(names) and all(state and set(state) == {"READY"} for state in states)

    def _wait(self, holds: Any, what: str, timeout: float) -> float:
        deadline = self.started + timeout
        while time.perf_counter() < deadline and self._process.poll() is None:
            try:
                if holds():
                    return time.perf_counter() - self.started
            except (OSError, http.client.HTTPException, ValueError):  # the second port opens after the first
                pass
            time.sleep(_POLL_SECONDS)
        ended = self._process.poll()
        state = f"ended with status {ended}" if ended is not None else f"within {timeout:g} s"
        raise TorchServeFailed("\n".join([f"TorchServe {what} ({state})", *self.log[-_LAST_LINES:]]))

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._grown:
                    self.log.append(line.rstrip("\n"))
                    self._grown.notify_all()


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row of the loopback address that nothing listens on now. They are none of
    those that the system gives to clients, one of which could take it before it is listened on."""
    while True:
        port = random.randrange(_FIRST_PORT, _FIRST_CLIENT_PORT - count)
        if all(_free(port + offset) for offset in range(count)):
            return port


def _free(port: int) -> bool:
    with socket.socket() as found:
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
