"""A real headless Chromium, driven through DevTools over a pipe: what a page asks for, throws and shows."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 90.0
DRAWN = "[...document.querySelectorAll('figure > div')].every(div => div.querySelector('.main-svg'))"


@dataclass(slots=True)
class Seen:
    """Everything a page did that a self-contained page must not do. `requests` leaves out the page's own file, and what
    it holds itself (data:)."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def start(command: list[str], reads: int, writes: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that reads its commands on fd 3 and answers on fd 4; both ends are closed here."""
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (reads, writes)]
    os.close(reads)
    os.close(writes)

    def place() -> None:
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, preexec_fn=place, pass_fds=(3, 4), stdout=quiet, stderr=quiet, env=env)
    for end in ends:
        os.close(end)
    return process


class Browser:
    """`with Browser(chromium) as browser: browser.open(path)`. Messages end in a zero byte: in on fd 3, out on fd 4.
    `flags`: Chromium's own, beside the usual ones."""

    def __init__(self, chromium: str, width: int = 1280, height: int = 900, flags: Sequence[str] = ()) -> None:
        self._chromium, self._size, self._flags = chromium, (width, height), flags
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        window = "--window-size={},{}".format(*self._size)
        command = [self._chromium, *FLAGS, *self._flags, f"--user-data-dir={self._profile.name}", window, "about:blank"]
        self._process = start(command, to_read, to_write, os.environ | {"TMPDIR": self._profile.name})
        self._attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def _attach(self) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One DevTools command and its answer; what happens meanwhile goes to `events`."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while (answer := self._next(deadline)).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0], (
                "Chromium said nothing"
            )
            piece = os.read(self._from, 1 << 20)
            assert piece, "Chromium ended"
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(text))

    def wait_for(self, event: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any(seen.get("method") == event for seen in self.events):
            self.events.append(self._next(deadline))

    def open(self, page: Path | str, scheme: str = "light", settle_s: float = 1.0) -> Seen:
        """Load a page, let it settle, and tell what it asked for and what went wrong."""
        url = page.resolve().as_uri() if isinstance(page, Path) else page
        self.events.clear()
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")
        self.settle(settle_s)
        return self.seen(url)

    def open_drawn(self, page: Path, scheme: str = "light") -> Seen:
        """The same of a page with figures, once the last of them is drawn."""
        self.open(page, scheme, settle_s=0.1)
        deadline = time.monotonic() + PATIENCE_S
        while not self.value(DRAWN):
            assert time.monotonic() < deadline, "not all figures were drawn"
            self.settle(0.1)
        return self.seen(page.resolve().as_uri())

    def settle(self, seconds: float) -> None:
        """Let timers, frames and requests that the page has under way come out."""
        wait = f"new Promise(done => setTimeout(() => requestAnimationFrame(() => done(0)), {1000 * seconds:.0f}))"
        self.ask("Runtime.evaluate", expression=wait, awaitPromise=True)

    def value(self, expression: str) -> Any:
        """A JavaScript expression's value in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def seen(self, own_url: str) -> Seen:
        seen = Seen()
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                seen.requests += [url] if url != own_url and not url.startswith("data:") else []
            elif method == "Network.webSocketCreated":
                seen.requests.append(params["url"])
            elif method == "Runtime.exceptionThrown":
                seen.errors.append(json.dumps(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert", "warning"):
                seen.errors.append(json.dumps(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                seen.errors.append(json.dumps(params["entry"]))
        return seen

    def picture(self, path: Path, top: int | None = None, bottom: int = 0) -> None:
        """A PNG of the page as it stands: the window, or from `top` to `bottom` in CSS pixels."""
        area: dict[str, Any] = {}
        if top is not None:
            clip = {"x": 0, "y": top, "width": self._size[0], "height": bottom - top, "scale": 1}
            area = {"captureBeyondViewport": True, "clip": clip}
        answer = self.ask("Page.captureScreenshot", format="png", **area)
        path.write_bytes(base64.b64decode(answer["data"]))
