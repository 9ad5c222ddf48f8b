"""Where everything goes: the destinations of the command line, else those of the `OTEL_*` variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

from ddptrace.errors import DdptraceError
from ddptrace.telemetry.delivery.delivery import ACCEPTED, Destination, Outcome
from ddptrace.telemetry.environment import (
    GRPC,
    HTTP,
    METRICS,
    TRACES,
    endpoint_of,
    extra,
    is_address,
    is_for_grpc,
    prometheus_address,
    shown,
    switched_off,
    wanted,
)

NO_DESTINATION = (
    "no destination is given; give --otlp URL, --prometheus PORT or --otlp-json FILE, or set "
    "OTEL_EXPORTER_OTLP_ENDPOINT"
)


@dataclass(frozen=True, slots=True)
class Targets:
    """The destinations of spans and of metrics. `prometheus`: host and port at which Prometheus scrapes metrics."""

    spans: tuple[Destination, ...] = ()
    metrics: tuple[Destination, ...] = ()
    prometheus: tuple[str, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.spans or self.has_metrics)

    @property
    def has_metrics(self) -> bool:
        return bool(self.metrics) or self.prometheus is not None

    def close(self) -> None:
        """Close every destination, once."""
        for destination in dict.fromkeys((*self.spans, *self.metrics)):
            destination.close()


def targets_of_options(
    otlp: str | None, protocol: str | None, prometheus: tuple[str, int] | None, otlp_json: Path | None
) -> Targets:
    """Return the destinations that the command line names, which may be none.

    Raises:
        DdptraceError: the URL is no address, the file cannot be written, or a package is missing.
    """
    found: list[Destination] = []
    with extra():
        if otlp is not None:
            found += [_otlp(_base(otlp), protocol or (GRPC if is_for_grpc(otlp) else HTTP))]
        if otlp_json is not None:
            from ddptrace.telemetry.delivery.otlp_json import OtlpJson

            found += [OtlpJson(otlp_json)]
    return Targets(tuple(found), tuple(found), prometheus)


def targets_of_environment(environ: Mapping[str, str], protocol: str | None = None) -> Targets:
    """Return the destinations that the environment names. `protocol` of OTLP takes precedence over the environment.

    Raises:
        DdptraceError: a variable has a value that ddptrace does not know, or a package is missing.
    """
    if protocol is not None:
        environ = {**environ, **{f"OTEL_EXPORTER_OTLP_{name.upper()}_PROTOCOL": protocol for name in (TRACES, METRICS)}}
    asked = wanted(environ)
    with extra():
        spans = [_named(name, environ, TRACES, protocol or asked.traces_protocol) for name in asked.traces]
        metrics = [
            _named(name, environ, METRICS, protocol or asked.metrics_protocol)
            for name in asked.metrics
            if name != "prometheus"
        ]
    scraped = prometheus_address(environ) if "prometheus" in asked.metrics else None
    return Targets(tuple(spans), tuple(metrics), scraped)


def why_none(environ: Mapping[str, str]) -> str:
    """Explain why there are no targets."""
    off = switched_off(environ)
    return NO_DESTINATION if off is None else f"the environment switches export off with {off}; unset it"


class Console:
    """The terminal: OpenTelemetry's own console exporters write to it."""

    name = "the terminal"

    def __init__(self) -> None:
        self._spans = ConsoleSpanExporter(out=sys.stdout)
        self._metrics = ConsoleMetricExporter(out=sys.stdout)

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome:
        try:
            self._spans.export(batch)
        except OSError as error:  # the reader of this output is gone, and will not come back
            return Outcome(True, len(batch), error.strerror or str(error))
        return ACCEPTED

    def metrics(self, data: MetricsData) -> Outcome:
        try:
            self._metrics.export(data)
        except OSError as error:
            return Outcome(True, 0, error.strerror or str(error))
        return ACCEPTED

    def close(self) -> None:
        pass


def _named(name: str, environ: Mapping[str, str], signal: str, protocol: str) -> Destination:
    return _otlp(None, protocol, endpoint_of(environ, signal)) if name == "otlp" else Console()


def _otlp(base: str | None, protocol: str, endpoint: str | None = None) -> Destination:
    """`base` None: OpenTelemetry reads the address from the environment; `endpoint` is that address, for messages."""
    from ddptrace.telemetry.delivery.otlp import Otlp  # needs the extra, which a file or Prometheus does not

    default = "http://localhost:4317" if protocol == GRPC else "http://localhost:4318"
    return Otlp(base, protocol, shown(base or endpoint or default))


def _base(url: str) -> str:
    """Return the collector's address without the path of one signal. Raises DdptraceError if it is no address."""
    if not is_address(url, HTTP):
        raise DdptraceError(
            f"--otlp {shown(url)} is not the address of a collector; give one like http://localhost:4318"
        )
    return url.rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/metrics")
