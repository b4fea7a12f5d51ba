"""A headless Chromium, driven by its DevTools protocol; no driver to install beside it."""

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_S = 30.0


@contextmanager
def browser(folder: Path) -> Iterator["Page"]:
    """An empty page; skips the test where there is no Chromium."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("no chromium on this machine; .ci/setup installs it where apt-get may")
    switches = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    process = subprocess.Popen(
        [program, *switches, "--no-first-run", f"--user-data-dir={folder}", "about:blank"],
        stderr=subprocess.DEVNULL,
    )
    try:
        with connect(_page_address(folder), max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)


def _page_address(folder: Path) -> str:
    port_file = folder / "DevToolsActivePort"
    _wait(lambda: port_file.exists() and "\n" in port_file.read_text(), "no DevTools port")
    port = port_file.read_text().splitlines()[0]
    pages: list[dict[str, Any]] = []

    def has_page() -> bool:
        targets = httpx.get(f"http://127.0.0.1:{port}/json").json()
        pages[:] = [target for target in targets if target["type"] == "page"]
        return bool(pages)

    _wait(has_page, "no page")
    return str(pages[0]["webSocketDebuggerUrl"])


def _wait(condition: Any, message: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.1)


class Page:
    """One tab; remembers what its console complains of."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        call_id = next(self._ids)
        self._socket.send(json.dumps({"id": call_id, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(_PATIENCE_S))
            if message.get("id") == call_id:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def look(self, width: int, height: int, scheme: str) -> None:
        """Take another size and colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = _PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.run(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.1)

    def press(self, key: str, code: int, modifiers: int = 0, text: str = "") -> None:
        event = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, text=text, **event)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, file: Path) -> None:
        """All of the page, as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif message["method"] == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
        ):
            self.complaints.append(str(params["args"]))
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] in (
            "error",
            "warning",
        ):
            self.complaints.append(str(params["entry"]))
