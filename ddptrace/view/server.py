"""The server: on loopback only, for browsers that named this machine, and of the site's files only."""

from __future__ import annotations

import os
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from ddptrace.view.site import Served, Site

LOOPBACK: Final = "127.0.0.1"
NAMES: Final = (LOOPBACK, "localhost", "::1")
PERFETTO_PORT: Final = 9001
"""The one from which Perfetto's site may read."""
IDLE_S: Final = 60.0
ASKED_TO_END_S: Final = 0.05
"""Seconds between two looks."""
CONTENT_POLICY: Final = "; ".join((
    "default-src 'self'",
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # as the UI is built; it narrows this itself
    "style-src 'self' 'unsafe-inline'",
    "connect-src 'self' data: blob:",
    "img-src 'self' data: blob:",
    "worker-src 'self' blob:",
    "object-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip
"""The UI asks other servers who its user is, and whether a trace processor runs nearby. From here it reaches nobody."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Raises OSError where the port cannot be had. 0: any that is free."""

    daemon_threads = True

    def __init__(self, site: Site, port: int) -> None:
        self.site = site
        super().__init__((LOOPBACK, port), Handler)

    def server_bind(self) -> None:
        """Without asking a name server for our own name."""
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
        """A browser asks for Perfetto's site whether it may come to this machine at all."""
        if self._is_refused():
            return
        if self._path() != self.server.site.trace or not self._reader():
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        allowed = {"Access-Control-Allow-Methods": "GET, HEAD", "Access-Control-Allow-Private-Network": "true"}
        self._head(HTTPStatus.NO_CONTENT, allowed)

    def _found(self) -> Served | None:
        """None where the answer has been given."""
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
        """A page from elsewhere can have its own name lead here, and would then count as ours; it cannot change what
        the browser says it asked for."""
        said = self.headers.get_all("Host", [])
        if len(said) == 1 and _name(said[0]) in NAMES:
            return False
        self.send_error(HTTPStatus.FORBIDDEN, "Only for browsers that asked for 127.0.0.1 or localhost")
        return True

    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _port(self) -> int:
        return urlsplit(f"//{self.headers['Host']}").port or 80

    def _reader(self) -> dict[str, str]:
        """Headers that let the one foreign origin read, where it is what asks."""
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
    """Of what a browser says it asked for, without the port; None where that is nonsense."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname if parts.port != 0 and parts.netloc == host and not parts.username else None
    except ValueError:
        return None


@contextmanager
def serving(server: Server) -> Iterator[None]:
    """Answers within the block; what is being sent at its end is cut off."""
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
