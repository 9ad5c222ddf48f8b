"""OTLP over gRPC, with the collector's real answers.

OpenTelemetry's exporter does not look at the answer, and repeats failed attempts until its timeout. Here it gets a
client that reads the answer and ends it after one attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from ddptrace.telemetry.delivery.channel import ATTEMPT_S, SPANS, Channel, Heard, Listener, Signal, quoted
from ddptrace.telemetry.delivery.delivery import Outcome

NEVER: Final = frozenset({grpc.StatusCode.INVALID_ARGUMENT})
"""The collector understood the request, and will never accept it."""
LASTING: Final = frozenset(
    {
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
    }
)
"""Errors that last until somebody changes a setting."""
SPEAKS_HTTP: Final = ("Failed parsing HTTP/2", "http1.x server")
"""In gRPC's error messages: HTTP/1 answered."""
HTTP_HERE: Final = (
    "this port speaks HTTP, not gRPC; give --protocol http/protobuf or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
)
RETRY_INFO: Final = "google.rpc.retryinfo-bin"


class GrpcChannel(Channel):
    def connect(self) -> tuple[Any, Listener | None]:
        make: Callable[..., Any] = OTLPSpanExporter if self._signal is SPANS else OTLPMetricExporter
        exporter = make(endpoint=self._endpoint)
        client = getattr(exporter, "_client", None)
        if not hasattr(client, "Export"):  # a version of the exporter with another structure
            return exporter, None
        exporter._client = listener = Listening(client, self._signal)
        return exporter, listener


class Listening(Listener):
    """Wraps the exporter's own client."""

    def __init__(self, client: Any, signal: Signal) -> None:
        self._client = client
        self._signal = signal

    def Export(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Make one attempt. Raises Heard if it fails."""
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
    info = dict(error.trailing_metadata() or ()).get(RETRY_INFO)
    if not isinstance(info, bytes):
        return None
    delay = RetryInfo.FromString(info).retry_delay
    return float(delay.seconds + delay.nanos / 1e9)
