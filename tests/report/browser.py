"""A real browser for tests: Chromium without a window, spoken to through a pipe."""

import base64
import json
import os
import shutil
import subprocess
from collections import deque
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def chromium() -> str | None:
    """Path of the browser, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a browser; what it asks for and complains about is kept."""

    def __init__(self, profile: Path) -> None:
        to_browser, ours = os.pipe()
        theirs, from_browser = os.pipe()
        path = chromium()
        assert path is not None
        # The browser reads commands from descriptor 3 and answers on 4.
        moved = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", moved, path, *FLAGS, f"--user-data-dir={profile}"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=quiet, stderr=quiet
        )
        os.close(to_browser)
        os.close(from_browser)
        self.out, self.into = os.fdopen(theirs, "rb", 0), os.fdopen(ours, "wb", 0)
        self.buffer, self.waiting = b"", deque[dict[str, Any]]()
        self.count = 0
        self.session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        held = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = held["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self.into.close()
        self.process.kill()
        self.process.wait()
        self.out.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        self.into.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self.waiting.append(answer)

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there.

        By way of an empty one: the page before may still report, about a server that ended.
        """
        for each in ("about:blank", url):
            self.waiting.clear()
            self.requests.clear()
            self.complaints.clear()
            self.call("Page.navigate", url=each)
            self.wait_for("Page.loadEventFired")

    def wait_for(self, method: str) -> None:
        """Wait for an event."""
        while True:
            event = self.waiting.popleft() if self.waiting else self._next()
            self._note(event)
            if event.get("method") == method:
                return

    def run(self, code: str) -> Any:
        """Value of an expression in the page; what it complained about is noted as well."""
        given = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        while self.waiting:
            self._note(self.waiting.popleft())
        assert "exceptionDetails" not in given, given["exceptionDetails"]
        return given["result"].get("value")

    def look(self, *, dark: bool = False, media: str = "screen") -> None:
        """Choose the colours of the system, and screen or paper."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])

    def resize(self, width: int, height: int) -> None:
        """Choose the size of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def picture(self, path: Path) -> None:
        """Save what can be seen as PNG."""
        given = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(given["data"]))

    def printed(self) -> bytes:
        """The page on paper, as PDF."""
        given = self.call("Page.printToPDF", printBackground=True)
        return base64.b64decode(given["data"])

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] != "verbose":
            self.complaints.append(params["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            more = self.out.read(1 << 20)
            assert more, "the browser is gone"
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\0", 1)
        return dict(json.loads(line))
