"""OTLP over HTTP, with the collector's real answers.

OpenTelemetry's exporter takes every answer from 200 to 399 for success, never reads it, and repeats failed attempts
until its timeout. Here it gets a session that reads the answer and ends it after one attempt. The session also bounds
the time of a request: the timeout of requests begins anew with each byte that arrives.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any, Final
from weakref import WeakSet

import requests
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, PoolManager

from ddptrace.telemetry.delivery.channel import ATTEMPT_S, SPANS, WORDS, Channel, Heard, Listener, Signal, quoted
from ddptrace.telemetry.delivery.delivery import Outcome


class BoundedSession(requests.Session):
    """A session whose requests end in time."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._cut = False
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(self._sockets))

    @contextlib.contextmanager
    def within(self, allowed_s: float) -> Iterator[None]:
        """Bound the time of a request and of reading its answer. Raises requests.Timeout after `allowed_s` seconds."""
        self._cut = False
        timer = threading.Timer(allowed_s, self._cut_off)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (requests.RequestException, OSError):
            if not self._cut:
                raise
        finally:
            timer.cancel()
        if self._cut:
            raise requests.Timeout

    def _cut_off(self) -> None:
        self._cut = True
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)


class _Adapter(HTTPAdapter):
    """Notes the socket of each connection: a connection that closes drops its socket before the answer is read."""

    def __init__(self, sockets: WeakSet[socket.socket]) -> None:
        self._sockets = sockets
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        self._watch(manager)
        return manager

    def _watch(self, manager: PoolManager) -> None:
        manager.pool_classes_by_scheme = {
            scheme: _noting(pool, self._sockets) for scheme, pool in manager.pool_classes_by_scheme.items()
        }


ANSWER_NBYTES: Final = 1 << 20
"""The most that is read of an answer, which normally has a few bytes."""
NEVER: Final = frozenset({400, 413, 422})
"""The collector understood the request, and will never accept it."""
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Errors that may pass by themselves; others last until somebody changes a setting."""
FIRST_OF_HTTP2: Final = "\x04\0\0\0\0\0"
"""An HTTP/2 server speaks first: three bytes of length, then this, the head of its SETTINGS frame."""
GRPC_HERE: Final = "this port speaks gRPC, not HTTP; give --protocol grpc or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
NO_HTTP: Final = "its answer is not HTTP; is this a collector's address?"


class HttpChannel(Channel):
    def connect(self) -> tuple[Any, Listener]:
        listener = Listening(self._signal)
        endpoint = None if self._endpoint is None else f"{self._endpoint.rstrip('/')}/{self._signal.path}"
        make: Callable[..., Any] = OTLPSpanExporter if self._signal is SPANS else OTLPMetricExporter
        return make(endpoint=endpoint, session=listener), listener


class Listening(BoundedSession, Listener):
    """The session through which an exporter sends."""

    def __init__(self, signal: Signal) -> None:
        super().__init__()
        self._signal = signal

    def request(self, method: Any, url: Any, *args: Any, timeout: Any = None, **options: Any) -> requests.Response:
        """Make one attempt. Raises Heard unless everything was accepted."""
        allowed_s = min(float(timeout or ATTEMPT_S), ATTEMPT_S)
        try:
            with self.within(allowed_s):
                answer = super().request(method, url, *args, **options | {"timeout": allowed_s, "stream": True})
                body = _read(answer)
        except (requests.RequestException, OSError) as error:
            self.outcome = _of_error(error, allowed_s)
            raise Heard from None
        self.outcome = self._judged(answer, body)
        if not self.outcome.settled or self.outcome.refused:
            raise Heard
        return answer

    def _judged(self, answer: requests.Response, body: bytes) -> Outcome:
        status = answer.status_code
        if 200 <= status < 300:
            return self._accepted(answer, body)
        if 300 <= status < 400:
            where = quoted(answer.headers.get("location", "nowhere"))
            return Outcome(False, why=f"it answered {status} and redirects to {where}", lasting=True)
        why = f"it answered {status} {quoted(answer.reason or '')}{_quoted(answer, body)}"
        if status in NEVER:
            return Outcome(True, self.count, why)
        again_s = _seconds(answer.headers.get("retry-after"))
        return Outcome(False, why=why, again_s=again_s, lasting=status not in PASSING)

    def _accepted(self, answer: requests.Response, body: bytes) -> Outcome:
        kind = _content_type(answer)
        try:
            return self._signal.read(_parsed(self._signal.response(), kind, body), self.count)
        except (DecodeError, json_format.ParseError, ValueError):
            what = f"{kind or 'something'} that is not OTLP"
            why = f"it answered {answer.status_code} with {what}; is this a collector's address?"
            return Outcome(False, why=why, lasting=True)


def _parsed(empty: Message, kind: str, body: bytes) -> Message:
    """Parse an answer; an empty body is an empty answer. Raises ValueError, DecodeError or ParseError if it is
    invalid."""
    if kind == "application/json":
        return _parsed_json(empty, body)
    if body and kind.startswith("text/"):
        raise ValueError(kind)
    empty.ParseFromString(body)
    return empty


def _parsed_json(empty: Message, body: bytes) -> Message:
    """Parse JSON. A later version of OTLP may add fields, but at least one field must be known."""
    content = json.loads(body or b"{}")
    known = {name for field in empty.DESCRIPTOR.fields for name in (field.name, field.json_name)}
    if not isinstance(content, dict) or (content and not known & content.keys()):
        raise ValueError(type(content))
    return json_format.ParseDict(content, empty, ignore_unknown_fields=True)


def _read(answer: requests.Response) -> bytes:
    body = b""
    with answer:
        for piece in answer.iter_content(1 << 16):
            body += piece
            if len(body) > ANSWER_NBYTES:
                break
    return body


def _content_type(answer: requests.Response) -> str:
    return quoted(answer.headers.get("content-type", "").partition(";")[0].strip().lower())


def _quoted(answer: requests.Response, body: bytes) -> str:
    if not _content_type(answer).startswith(("text/plain", "application/json")) or not body.strip():
        return ""
    return f": {quoted(body[: 4 * WORDS].decode(errors='replace').strip())}"


def _seconds(retry_after: str | None) -> float | None:
    """Return the header's seconds, None if it is missing or a date, which is not worth parsing."""
    return float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None


def _of_error(error: Exception, allowed_s: float) -> Outcome:
    if isinstance(error, requests.Timeout):
        return Outcome(False, why=f"no answer within {allowed_s:.1f} s")
    for cause in _causes(error):
        if isinstance(cause, RemoteDisconnected):
            return Outcome(False, why="it closed the connection without an answer")
        if isinstance(cause, BadStatusLine):
            is_grpc = str(cause.args[0]).startswith(FIRST_OF_HTTP2, 3)
            return Outcome(False, why=GRPC_HERE if is_grpc else NO_HTTP, lasting=True)
        if isinstance(cause, OSError) and cause.strerror:
            return Outcome(False, why=quoted(cause.strerror.lower() if cause.errno else cause.strerror))
    is_lasting = isinstance(error, ValueError)  # an invalid address or header
    return Outcome(False, why=f"{type(error).__name__}: {quoted(error)}", lasting=is_lasting)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: requests and urllib3 each wrap the system's error in their own way."""
    while error is not None:
        yield error
        inner = [argument for argument in error.args if isinstance(argument, BaseException)]
        error = getattr(error, "reason", None) or next(iter(inner), None) or error.__cause__ or error.__context__


def _noting(pool: type[HTTPConnectionPool], sockets: WeakSet[socket.socket]) -> type[HTTPConnectionPool]:
    class Noted(pool.ConnectionCls):  # type: ignore[name-defined, misc]
        def connect(self) -> None:
            super().connect()
            sockets.add(self.sock)

    return type(pool.__name__, (pool,), {"ConnectionCls": Noted})
