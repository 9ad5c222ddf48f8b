"""OTLP over gRPC: what the collector really answered.

OpenTelemetry's exporter does not look at the answer, and tries again by itself for as long as its timeout lasts. It is
given a client that reads the answer, and lets it try once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from ddptrace.telemetry.delivery.channel import ATTEMPT_S, SPANS, Channel, Heard, Listener, Signal, quoted
from ddptrace.telemetry.delivery.destination import Outcome

NEVER: Final = frozenset({grpc.StatusCode.INVALID_ARGUMENT})
"""The other side understood, and will not take this very request however often it is sent."""
LASTING: Final = frozenset(
    {
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
    }
)
"""Until somebody sets something right."""
SPEAKS_HTTP: Final = ("Failed parsing HTTP/2", "http1.x server")
"""In gRPC's words: what answered is HTTP/1."""
HTTP_HERE: Final = (
    "this port speaks HTTP and no gRPC: --protocol http/protobuf or OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf says so"
)
RETRY_INFO: Final = "google.rpc.retryinfo-bin"


class GrpcChannel(Channel):
    def connect(self) -> tuple[Any, Listener | None]:
        make: Callable[..., Any] = OTLPSpanExporter if self._signal is SPANS else OTLPMetricExporter
        exporter = make(endpoint=self._endpoint)
        client = getattr(exporter, "_client", None)
        if not hasattr(client, "Export"):  # an exporter that is built otherwise
            return exporter, None
        exporter._client = listener = Listening(client, self._signal)
        return exporter, listener


class Listening(Listener):
    """Stands before the exporter's own client."""

    def __init__(self, client: Any, signal: Signal) -> None:
        self._client = client
        self._signal = signal

    def Export(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Raises Heard unless all was accepted."""
        allowed_s = min(timeout or ATTEMPT_S, ATTEMPT_S)
        try:
            answer = self._client.Export(*args, timeout=allowed_s, **options)
        except grpc.RpcError as error:
            self.outcome = _of_error(error, self.count, allowed_s)
            raise Heard from None
        self.outcome = self._signal.read(answer, self.count)
        return answer


def _of_error(error: grpc.RpcError, count: int, allowed_s: float) -> Outcome:
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Outcome(False, why=f"no answer within {allowed_s:.1f} s")
    details = quoted(error.details() or "")
    if code is grpc.StatusCode.UNAVAILABLE and any(sign in details for sign in SPEAKS_HTTP):
        return Outcome(False, why=HTTP_HERE, lasting=True)
    why = f"{code.name.lower().replace('_', ' ')}{': ' if details else ''}{details}"
    if code in NEVER:
        return Outcome(True, count, why)
    return Outcome(False, why=why, again_s=_pause_s(error), lasting=code in LASTING)


def _pause_s(error: grpc.RpcError) -> float | None:
    said = dict(error.trailing_metadata() or ()).get(RETRY_INFO)
    if not isinstance(said, bytes):
        return None
    delay = RetryInfo.FromString(said).retry_delay
    return float(delay.seconds + delay.nanos / 1e9)
