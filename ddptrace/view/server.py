"""The server: it listens on loopback only and serves only the site; a browser is opened, or told how to reach it."""

from __future__ import annotations

import getpass
import os
import socket
import socketserver
import sys
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from ddptrace.view.site import Served, Site

LOOPBACK: Final = "127.0.0.1"
NAMES: Final = (LOOPBACK, "localhost", "::1")
PERFETTO_PORT: Final = 9001
"""The only port that Perfetto's site may read from."""
IDLE_S: Final = 60.0
ASKED_TO_END_S: Final = 0.05
"""Seconds between two checks for shutdown."""
CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # the UI needs this, and narrows it itself
        "style-src 'self' 'unsafe-inline'",
        "connect-src 'self' data: blob:",
        "img-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The UI contacts other servers about its user and about a local trace processor. This policy prevents that."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Serves a site on a port; 0 takes any free port. Raises OSError if the port is not available."""

    daemon_threads = True

    def __init__(self, site: Site, port: int) -> None:
        self.site = site
        super().__init__((LOOPBACK, port), Handler)

    def server_bind(self) -> None:
        """Bind without a DNS lookup of this machine's name."""
        socketserver.TCPServer.server_bind(self)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}{self.site.entry}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # a browser that was closed
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "ddptrace"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        served = self._found()
        if served is None:
            return
        try:
            file = served.path.open("rb")
        except OSError as error:
            self.send_error(HTTPStatus.NOT_FOUND, error.strerror)
            return
        with file:
            nbytes = os.fstat(file.fileno()).st_size
            self._head(HTTPStatus.OK, {"Content-Type": served.content_type, "Content-Length": str(nbytes)})
            if self.command == "GET" and nbytes:
                self.connection.sendfile(file, count=nbytes)

    do_HEAD = do_GET

    def do_OPTIONS(self) -> None:
        """Answer a browser's preflight request for Perfetto's site."""
        if self._is_refused():
            return
        if self._path() != self.server.site.trace or not self._reader():
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        allowed = {"Access-Control-Allow-Methods": "GET, HEAD", "Access-Control-Allow-Private-Network": "true"}
        self._head(HTTPStatus.NO_CONTENT, allowed)

    def _found(self) -> Served | None:
        """Find the requested file; None if the request has been answered."""
        if self._is_refused():
            return None
        site, path = self.server.site, self._path()
        if path == site.entry:
            self._head(HTTPStatus.FOUND, {"Location": site.leads_to(self._port()), "Content-Length": "0"})
            return None
        served = site.files.get(path)
        if served is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        return served

    def _is_refused(self) -> bool:
        """Refuse requests to other host names: a foreign page could point its own name at this machine (DNS rebinding)
        and pass for ours, but it cannot change the Host header."""
        said = self.headers.get_all("Host", [])
        if len(said) == 1 and _name(said[0]) in NAMES:
            return False
        self.send_error(HTTPStatus.FORBIDDEN, "Only requests to 127.0.0.1 or localhost are served")
        return True

    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _port(self) -> int:
        return urlsplit(f"//{self.headers['Host']}").port or 80

    def _reader(self) -> dict[str, str]:
        """Return headers that let the one foreign origin read, if the request comes from it."""
        origin = self.server.site.origin
        asks = origin is not None and self.headers.get_all("Origin", []) == [origin]
        return {"Access-Control-Allow-Origin": str(origin), "Vary": "Origin"} if asks else {}

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | self._reader()).items():
            self.send_header(name, value)
        self.end_headers()

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _name(host: str) -> str | None:
    """Return the host name of a Host header, without the port; None if the header is invalid."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname if parts.port != 0 and parts.netloc == host and not parts.username else None
    except ValueError:
        return None


@contextmanager
def serving(server: Server) -> Iterator[None]:
    """Serve within the block. At its end, transfers in progress are cut off."""
    with server:
        thread = threading.Thread(
            target=server.serve_forever, args=(ASKED_TO_END_S,), name="ddptrace-view", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def open_browser(address: str) -> bool:
    """Open a browser. Returns whether one opened. Never opens a text browser, which cannot show the UI."""
    return has_browser(os.environ, sys.platform) and webbrowser.open(address)


def has_browser(environment: Mapping[str, str], platform: str) -> bool:
    """Whether to open a browser. BROWSER decides if set: remote editors use it to open one on the user's machine."""
    if environment.get("BROWSER"):
        return True
    if "SSH_CONNECTION" in environment:
        return False
    return platform != "linux" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def tunnel(port: int) -> str:
    """Return the command for the machine with the browser. The port is the same there: Perfetto's site needs it."""
    return f"ssh -L {port}:127.0.0.1:{port} {_user()}{socket.gethostname()}"


def _user() -> str:
    try:
        return f"{getpass.getuser()}@"
    except (KeyError, OSError):  # a container without user names
        return ""
