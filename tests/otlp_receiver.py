"""An OTLP receiver, over gRPC and HTTP, with OpenTelemetry's own servicers and messages. It keeps what it accepts, and
can be told to behave badly."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

Attributes = dict[str, Any]


@dataclass(frozen=True)
class Received:
    """One span or metric, and what it is said to come from."""

    resource: Attributes
    scope: str
    item: Any


@dataclass
class Behaviour:
    """`slow_s` before each answer; `status`: HTTP status or gRPC code to answer with, and its headers; `nonsense`: a
    page instead of an answer; `refuse_spans`: so many of each request; `die_after`: so many requests, then no more;
    `no_metrics`: it takes traces only."""

    slow_s: float = 0.0
    status: int = 0
    code: grpc.StatusCode | None = None
    headers: dict[str, str] = field(default_factory=dict)
    nonsense: bytes | None = None
    content_type: str = "text/html"
    refuse_spans: int = 0
    message: str = ""
    die_after: int | None = None
    no_metrics: bool = False


class Receiver:
    """A context manager. What was accepted is in `requests`, whole messages in the order of their coming."""

    def __init__(self, grpc_port: int = 0) -> None:
        self.grpc_port = grpc_port
        self.behaviour = Behaviour()
        self.traces: list[trace_pb2.ExportTraceServiceRequest] = []
        self.metrics: list[metrics_pb2.ExportMetricsServiceRequest] = []
        self.asked = 0  # requests, whatever was answered
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._exits = ExitStack()

    def __enter__(self) -> Receiver:
        self._http = _HttpServer(("127.0.0.1", 0), self)
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        self._exits.callback(self._http.server_close)
        self._exits.callback(self._http.shutdown)
        self._grpc = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        trace_grpc.add_TraceServiceServicer_to_server(_Traces(self), self._grpc)
        metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._grpc)
        self.grpc_port = self._grpc.add_insecure_port(f"127.0.0.1:{self.grpc_port}")
        self._grpc.start()
        self._exits.callback(lambda: self._grpc.stop(0).wait())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def grpc_url(self) -> str:
        return f"http://127.0.0.1:{self.grpc_port}"

    def url(self, protocol: str) -> str:
        return self.grpc_url if protocol == "grpc" else self.http_url

    def spans(self) -> list[Received]:
        with self._lock:
            resources = [one for request in self.traces for one in request.resource_spans]
        return [received for one in resources for received in spans_of(one)]

    def points(self) -> list[Received]:
        """Metrics of the latest request of each resource."""
        with self._lock:
            resources = [one for request in self.metrics for one in request.resource_metrics]
        return [received for one in resources for received in metrics_of(one)]

    def take(self, request: Any) -> int:
        """Keep a request, or behave badly; how many of it are refused."""
        behaviour = self.behaviour
        with self._lock:
            self.asked += 1
        time.sleep(behaviour.slow_s)
        kept = self.traces if isinstance(request, trace_pb2.ExportTraceServiceRequest) else self.metrics
        with self._lock:
            kept.append(request)
        return behaviour.refuse_spans if kept is self.traces else 0

    def is_dead(self) -> bool:
        limit = self.behaviour.die_after
        return limit is not None and self.asked >= limit


def spans_of(one: ResourceSpans) -> Iterator[Received]:
    resource = attributes(one.resource.attributes)
    for scope in one.scope_spans:
        for span in scope.spans:
            yield Received(resource, scope.scope.name, span)


def metrics_of(one: ResourceMetrics) -> Iterator[Received]:
    resource = attributes(one.resource.attributes)
    for scope in one.scope_metrics:
        for metric in scope.metrics:
            yield Received(resource, scope.scope.name, metric)


def attributes(pairs: Any) -> Attributes:
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


class _Servicer:
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def answer(self, request: Any, context: grpc.ServicerContext, response: Callable[[int, str], Any]) -> Any:
        receiver = self._receiver
        behaviour = receiver.behaviour
        with receiver._lock:
            receiver.headers.append({str(key): str(value) for key, value in context.invocation_metadata()})
        if receiver.is_dead():
            context.abort(grpc.StatusCode.UNAVAILABLE, "died")
        if behaviour.code is not None:
            with receiver._lock:
                receiver.asked += 1
            time.sleep(behaviour.slow_s)
            context.abort(behaviour.code, behaviour.message)
        return response(receiver.take(request), behaviour.message)


class _Traces(_Servicer, trace_grpc.TraceServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:
        return self.answer(request, context, traces_answer)


class _Metrics(_Servicer, metrics_grpc.MetricsServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:
        if self._receiver.behaviour.no_metrics:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        return self.answer(request, context, metrics_answer)


def traces_answer(refused: int, message: str) -> trace_pb2.ExportTraceServiceResponse:
    partial = trace_pb2.ExportTracePartialSuccess(rejected_spans=refused, error_message=message)
    return trace_pb2.ExportTraceServiceResponse(partial_success=partial if refused or message else None)


def metrics_answer(refused: int, message: str) -> metrics_pb2.ExportMetricsServiceResponse:
    return metrics_pb2.ExportMetricsServiceResponse()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], receiver: Receiver) -> None:
        self.receiver = receiver
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer
    KINDS: ClassVar = {
        "/v1/traces": (trace_pb2.ExportTraceServiceRequest, traces_answer),
        "/v1/metrics": (metrics_pb2.ExportMetricsServiceRequest, metrics_answer),
    }

    def do_POST(self) -> None:
        receiver, behaviour = self.server.receiver, self.server.receiver.behaviour
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        with receiver._lock:
            receiver.headers.append({key.lower(): value for key, value in self.headers.items()})
        if receiver.is_dead():
            self.close_connection = True
            self.connection.close()
            return
        if behaviour.status or behaviour.nonsense is not None:
            with receiver._lock:
                receiver.asked += 1
            time.sleep(behaviour.slow_s)
            self.say(behaviour.status or 200, behaviour.nonsense or b"", behaviour.content_type, behaviour.headers)
            return
        if behaviour.no_metrics and self.path == "/v1/metrics":
            self.say(404, b"", "text/plain", {})
            return
        make, answer = self.KINDS[self.path]
        refused = receiver.take(make.FromString(body))
        self.say(200, answer(refused, behaviour.message).SerializeToString(), "application/x-protobuf", {})

    def say(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"content-type": kind, "content-length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass
