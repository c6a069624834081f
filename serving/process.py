"""A server process under a handle: started, waited for until it is ready, stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import IO

_ADDRESS = re.compile(r"serving on (http://\S+)")
_ADMIN = re.compile(r"state changes on (http://\S+), token in (.+)$")
_POLL_SECONDS = 0.02  # readiness has no event that another process could wait for


class ServerFailed(Exception):
    """The server ended, or was not ready in time; the message ends with the last lines of its log."""


class ServerProcess:
    """``preheat serve`` with the given arguments on a free port of the loopback interface, by this Python or another.

    >>> with ServerProcess(["digits", "--unproven"]) as server:
    ...     server.wait_ready(60)
    ...     print(server.url)
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, python: str = sys.executable
    ) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "serving", "serve", *arguments, "--port", "0"],
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.started = time.perf_counter()
        self.log: list[str] = []
        self.url = ""
        self.admin_url = ""
        self.admin_token_file = ""
        self._answers = threading.Event()
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_answering(self, timeout: float) -> None:
        """Waits until the port answers (not until the models are ready); raises ServerFailed."""
        if not self._answers.wait(timeout) or not self.url:
            raise ServerFailed(self._why("did not listen", timeout))

    def wait_ready(self, timeout: float) -> float:
        """Waits until the server is ready, and says how many seconds after its start; raises ServerFailed."""
        self.wait_answering(timeout)
        deadline = self.started + timeout
        while time.perf_counter() < deadline and self._process.poll() is None:
            status, document = self._health()
            if status == 200:
                return time.perf_counter() - self.started
            failed = [model for model in (document or {}).get("models", {}).values() if model["state"] == "failed"]
            if failed:
                raise ServerFailed(self._why(f"cannot get ready: {failed}", timeout))
            time.sleep(_POLL_SECONDS)
        raise ServerFailed(self._why("was not ready", timeout))

    def stop(self, timeout: float = 60) -> int:
        """Asks the server to end and waits; its exit status. Kills it after ``timeout`` seconds and raises."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(self._why("did not end", timeout)) from None
        self._reader.join()
        return status

    def wait(self, timeout: float) -> int:
        """Waits for the server to end by itself; its exit status. Raises ServerFailed where it goes on."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerFailed(self._why("did not end", timeout)) from None

    def kill(self) -> None:
        """Ends the server at once, with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.log.append(line.rstrip("\n"))
                admin = _ADMIN.search(line)
                address = _ADDRESS.search(line)
                if admin:
                    self.admin_url, self.admin_token_file = admin[1], admin[2]
                if address:
                    self.url = address[1]
                    self._answers.set()
        self._answers.set()

    def _health(self) -> tuple[int, dict | None]:  # type: ignore[type-arg]
        try:
            with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=5) as response:
                return response.status, None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except (urllib.error.URLError, OSError):
            return 0, None

    def _why(self, what: str, timeout: float) -> str:
        ended = self._process.poll()
        state = f"ended with status {ended}" if ended is not None else f"within {timeout:g} s"
        return "\n".join([f"the server {what} ({state})", *self.log[-15:]])
