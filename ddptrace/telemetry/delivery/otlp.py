"""A collector that takes OTLP.

OpenTelemetry's own exporters serialise and send, so that all of `OTEL_EXPORTER_OTLP_*` (headers, timeout, compression,
certificates) has its usual meaning. They need packages of the extra, so `targets.py` imports this file only to use it.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.telemetry.delivery.channel import POINTS, SPANS, Channel, Signal
from ddptrace.telemetry.delivery.delivery import Outcome, points
from ddptrace.telemetry.environment import GRPC


class Otlp:
    """Sends to a collector. `endpoint` has no path; None: the environment has the endpoint of each signal."""

    def __init__(self, endpoint: str | None, protocol: str, name: str) -> None:
        self.name = name
        self._spans = _channel(endpoint, protocol, SPANS)
        self._points = _channel(endpoint, protocol, POINTS)

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome:
        return self._spans.send(batch, len(batch))

    def metrics(self, data: MetricsData) -> Outcome:
        return self._points.send(data, points(data))

    def close(self) -> None:
        self._spans.close()
        self._points.close()


def _channel(endpoint: str | None, protocol: str, signal: Signal) -> Channel:
    """Import only the library that is needed: each of the two takes a fifth of a second."""
    if protocol == GRPC:
        from ddptrace.telemetry.delivery.otlp_grpc import GrpcChannel

        return GrpcChannel(endpoint, signal)
    from ddptrace.telemetry.delivery.otlp_http import HttpChannel

    return HttpChannel(endpoint, signal)
