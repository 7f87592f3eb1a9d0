"""One Chromium for all pages of a test session, which takes long to start, driven over its DevTools pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --no-first-run "
    "--hide-scrollbars --remote-debugging-pipe"
)
#: Chromium reads commands from descriptor 3 and writes answers to 4.
_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """A running Chromium, with an empty folder for its profile and its stderr output."""

    def __init__(self, executable: str, home: Path) -> None:
        self._log = home / "stderr"
        theirs, self._commands = os.pipe()
        self._answers, written = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, written)]  # so that 3 and 4 are free
        command = [sys.executable, "-I", "-S", "-c", _START, *map(str, high), executable, *FLAGS.split()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--user-data-dir={home / 'profile'}"], pass_fds=high, stdout=log, stderr=log
            )
        for end in (theirs, written, *high):
            os.close(end)
        self._sent, self._rest, self._events = 0, b"", []
        self._ready = selectors.DefaultSelector()  # not `select`, which takes no descriptor above 1,023
        self._ready.register(self._answers, selectors.EVENT_READ)

    def open(self, path: Path, *, width: int, height: int, dark: bool = False) -> Tab:
        """Open a file in a window of the given size, and return once it is loaded."""
        return Tab(self, path, width, height, dark)

    def close(self) -> None:
        self.ask("Browser.close")
        self._process.wait(60)
        self._ready.close()
        os.close(self._commands)
        os.close(self._answers)

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events received until then are kept."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            self._events.append(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def wait(self, method: str, session: str) -> None:
        """Wait for an event."""
        while not self.result(session, method):
            self._events.append(self._next())

    def result(self, session: str, *methods: str) -> list[dict[str, Any]]:
        """Return the events of the given kinds received so far."""
        return [one for one in self._events if one.get("sessionId") == session and one.get("method") in methods]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + 120
        while b"\0" not in self._rest:
            ready = self._ready.select(max(0.0, end - time.monotonic()))
            read = os.read(self._answers, 2**20) if ready else b""
            if not read:
                self._process.kill()
                raise AssertionError(f"no answer of the browser\n{self._log.read_text(errors='replace')[-2000:]}")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Tab:
    """An open page."""

    def __init__(self, browser: Browser, path: Path, width: int, height: int, dark: bool) -> None:
        self._browser = browser
        self._target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.as_uri())
        browser.wait("Page.loadEventFired", self._session)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])

    def said(self) -> list[dict[str, Any]]:
        """Return the messages of the page's console: output and errors of scripts, and complaints of the browser."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [event["params"] for event in self._browser.result(self._session, *kinds)]

    def close(self) -> None:
        self._browser.ask("Target.closeTarget", targetId=self._target)
