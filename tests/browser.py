"""A headless Chromium over its debugging pipe: what it draws, what it fetches and what it complains of."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_COMPLAINTS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Network.loadingFailed")


class Browser:
    """One page of Chromium; a context manager. home: an empty folder that it may fill."""

    def __init__(self, home: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage --remote-debugging-pipe"
        command = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, str(CHROMIUM), str(home)],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._received, self._asked, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        self._asked += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._asked, "method": method, "params": parameters, **session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._asked:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self, timeout: float = 60) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while b"\0" not in self._received:
            assert select.select([self._read], [], [], max(0, end - time.monotonic()))[0], "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._received += piece
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Show a file in a window of that many CSS pixels; `events` are then those of this page."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[theme])
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """What the page asked for, itself included, but for what it holds in data: URLs."""
        sent = (e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [url for url in sent if not url.startswith("data:")]

    def complaints(self) -> list[dict[str, Any]]:
        """What stands in its console, and what it could not load."""
        return [event["params"] for event in self.events if event.get("method") in _COMPLAINTS]

    def screenshot(self) -> bytes:
        """The whole page as a PNG file."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"])
