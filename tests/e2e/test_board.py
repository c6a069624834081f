"""The warm board in a real browser: clicked through, on a phone and a desktop, light and dark, and without script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.process import ServerProcess

pytestmark = pytest.mark.slow
MODEL = """
name: echo
version: "1"
engine: {kind: python, source: "echo.py:Echo"}
inputs: [{name: x, dtype: fp32, dims: [batch, width]}]
outputs: [{name: y, dtype: fp32, dims: [batch, width]}]
shapes: {grid: {batch: [1, 2, 4, 8], width: [4, 8, 1024]}}
cold: run
"""
ECHO = "class Echo:\n    def run(self, x):\n        return {'y': x['x']}\n"
PHONE, DESKTOP = (390, 844), (1280, 900)


class Browser:
    """Chromium, told what to do over a pair of pipes in its DevTools protocol: JSON messages that end with a zero byte.

    It reads commands from descriptor 3 and answers on descriptor 4.
    """

    def __init__(self, command: list[str], profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        shell = f'exec "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                shell,
                "bash",
                *command,  # a plain sh knows no descriptors above 9
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._rest, self._number, self._session = b"", 0, {}

    def attach(self) -> None:
        """To the page that is open from the start."""
        (page,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Gives a command and waits for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def wait(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the element."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const box = e.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def looks(self, size: tuple[int, int], scheme: str) -> None:
        """A screen's size, and light or dark."""
        phone = size == PHONE
        self.call(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=phone
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def close(self) -> None:
        os.close(self._write)
        self._process.terminate()
        self._process.wait(30)
        os.close(self._read)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            received = os.read(self._read, 1 << 16)
            assert received, "Chromium ended"
            self._rest += received
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A proven model that has met warm and cold requests."""
    folder = tmp_path_factory.mktemp("board")
    model = folder / "store" / "echo"
    model.mkdir(parents=True)
    (model / "model.yaml").write_text(MODEL)
    (model / "echo.py").write_text(ECHO)
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    arguments = ["echo", "--model-store", str(folder / "store")]
    command = [sys.executable, "-m", "serving", "warm", *arguments, "--out", str(folder / "bundle")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with ServerProcess([*arguments, "--bundle", str(folder / "bundle")], environment) as running:
        running.wait_ready(60)
        for width in (4, 8, 5):
            ask(running, width)
        yield running


def ask(server: ServerProcess, width: int) -> None:
    inputs = [{"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1.0] * width}]
    answer = httpx.post(f"{server.url}/v2/models/echo/infer", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def browser(chromium: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(chromium, tmp_path_factory.mktemp("profile"))
    try:
        started.attach()
        yield started
    finally:
        started.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_fits_and_can_be_read(
    server: ServerProcess, browser: Browser, size: tuple[int, int], scheme: str
) -> None:
    browser.looks(size, scheme)
    browser.open(server.url)
    wide, high = browser.run("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    assert wide <= size[0] and high > 300, "nothing hangs out at the side"
    assert browser.run("document.querySelectorAll('td.warm').length") == 12
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    page, text = (luminance(colour) for colour in browser.run(colours))
    assert (page < 0.1) == (scheme == "dark") and contrast(page, text) > 7
    # Every shade of the map, whatever the times were.
    browser.run("document.querySelectorAll('td.warm').forEach((e, i) => { e.className = `warm heat${i % 5}`; })")
    cells = browser.run(
        "[...document.querySelectorAll('td.warm, dd, .key')].map(e => {let p = e; const clear = 'rgba(0, 0, 0, 0)';"
        "while (getComputedStyle(p).backgroundColor === clear) p = p.parentElement;"
        "return [getComputedStyle(p).backgroundColor, getComputedStyle(e).color]})"
    )
    assert min(contrast(luminance(behind), luminance(ink)) for behind, ink in cells) > 4.5, "as WCAG asks"


def luminance(colour: str) -> float:
    """Of ``rgb(r, g, b)``, relative, by WCAG 2."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_what_is_clicked_opens_and_stays_open_while_the_numbers_go_on(server: ServerProcess, browser: Browser) -> None:
    browser.looks(DESKTOP, "light")
    browser.open(server.url)
    digest = "document.querySelector('#bundle td').checkVisibility()"
    assert browser.run(digest) is False
    browser.click("#bundle summary")
    assert browser.run(digest) is True
    before = browser.run("document.querySelector('.key b').textContent")
    ask(server, 8)
    ask(server, 7)
    deadline = time.monotonic() + 60
    while browser.run("document.querySelector('.key b').textContent") == before:
        assert time.monotonic() < deadline, "the page fetches its numbers every two seconds"
        time.sleep(0.1)
    assert browser.run(digest) is True
    cold = browser.run("[...document.querySelectorAll('.cold tr')].map(e => e.innerText)")
    assert any(row.startswith("x=1x7:fp32") and row.count(":") == 5 for row in cold), "a shape, and two times"
    browser.click("footer a")
    browser.wait("Page.loadEventFired")
    assert browser.run("location.pathname") == "/docs"


def test_the_numbers_are_there_without_script(server: ServerProcess, browser: Browser) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(server.url)
        text = browser.run("document.querySelector('main').innerText")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "hit rate" in text and "12 of 12" in text and "x=1x5:fp32" in text
