"""What the standard `OTEL_*` variables ask for. Nothing here imports OpenTelemetry: training asks this at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ddptrace.errors import DdptraceError
from ddptrace.telemetry.addresses import GRPC, HTTP, is_address, shown

PROTOCOLS: Final = (GRPC, HTTP)
GRPC_PORT: Final = 4317
"""What OpenTelemetry gives to gRPC; HTTP has 4318."""

TRACES: Final = "traces"
METRICS: Final = "metrics"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
METRICS_EVERY_S: Final = 10.0
EXPORTERS: Final = {
    "otlp": ("otlp", None),
    "otlp_proto_grpc": ("otlp", GRPC),  # as OpenTelemetry's own Python packages call them
    "otlp_proto_http": ("otlp", HTTP),
    "console": ("console", None),
    "prometheus": ("prometheus", None),
    "none": (None, None),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Exporters by signal: `otlp`, `console`, and for metrics `prometheus`. `traces_protocol`, `metrics_protocol`: of
    OTLP."""

    traces: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    traces_protocol: str = HTTP
    metrics_protocol: str = HTTP

    def __bool__(self) -> bool:
        return bool(self.traces or self.metrics)


def wanted(environ: Mapping[str, str]) -> Wanted:
    """Raises DdptraceError for words that ddptrace does not know, and for numbers and addresses that are none."""
    if is_disabled(environ):
        return Wanted()
    (traces, traces_protocol), (metrics, metrics_protocol) = (_of_signal(environ, one) for one in (TRACES, METRICS))
    if "prometheus" in metrics:
        prometheus_address(environ)
    if set(metrics) - {"prometheus"}:
        metrics_every_s(environ)
    return Wanted(traces, metrics, traces_protocol, metrics_protocol)


def switched_off(environ: Mapping[str, str]) -> str | None:
    """The variables that say that nothing is to be exported, as they are said."""
    if is_disabled(environ):
        return "OTEL_SDK_DISABLED=true"
    said = {name: environ.get(name, "").strip().lower() for name in map(_exporter, (TRACES, METRICS))}
    return " and ".join(f"{name}=none" for name, word in said.items() if word == "none") or None


def is_disabled(environ: Mapping[str, str]) -> bool:
    """The SDK makes nothing then, whatever else is asked for."""
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def said_endpoint(environ: Mapping[str, str], signal: str) -> str | None:
    """Where OTLP of this signal goes to. An empty variable is as none."""
    return environ.get(_endpoint_variable(environ, signal), "").strip() or None


def is_for_grpc(endpoint: str | None) -> bool:
    """By its port."""
    try:
        return endpoint is not None and urlsplit(endpoint).port == GRPC_PORT
    except ValueError:  # no port at all: whoever uses the address says so
        return False


def prometheus_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port to be scraped at. Raises DdptraceError where the port is none."""
    port = environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "").strip() or "9464"
    if not port.isdecimal() or int(port) > 65535:
        raise DdptraceError(f"OTEL_EXPORTER_PROMETHEUS_PORT is {port!r}; give a number up to 65535")
    return environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "").strip() or "localhost", int(port)


def metrics_every_s(environ: Mapping[str, str]) -> float:
    """Between two times that metrics are sent. Raises DdptraceError where the variable is no number above 0."""
    said = environ.get(INTERVAL, "").strip()
    if not said:
        return METRICS_EVERY_S
    if not said.isdecimal() or not int(said):
        raise DdptraceError(f"{INTERVAL} is {said!r}; give milliseconds, a whole number above 0, as in 10000")
    return int(said) / 1000


def _of_signal(environ: Mapping[str, str], signal: str) -> tuple[tuple[str, ...], str]:
    variable = _exporter(signal)
    words = [word.strip().lower() for word in environ.get(variable, "").split(",") if word.strip()]
    if not words and said_endpoint(environ, signal) is not None:
        words = ["otlp"]
    for word in words:
        if word not in EXPORTERS or (word == "prometheus" and signal != METRICS):
            raise DdptraceError(f"{variable} is {word!r}, which ddptrace does not know; give otlp, console or none")
    found = [EXPORTERS[word] for word in words]
    protocols = [protocol for _, protocol in found if protocol is not None]
    names = tuple(dict.fromkeys(name for name, _ in found if name is not None))
    protocol = protocols[0] if protocols else _protocol(environ, signal)
    if "otlp" in names:
        _check_endpoint(environ, signal, protocol)
    return names, protocol


def _exporter(signal: str) -> str:
    return f"OTEL_{signal.upper()}_EXPORTER"


def _endpoint_variable(environ: Mapping[str, str], signal: str) -> str:
    """That which says where this signal goes to, if any does."""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    return own if environ.get(own, "").strip() else ENDPOINT


def _check_endpoint(environ: Mapping[str, str], signal: str, protocol: str) -> None:
    variable, said = _endpoint_variable(environ, signal), said_endpoint(environ, signal)
    if said is None:
        return
    if not is_address(said, protocol):
        example = "http://localhost:4317" if protocol == GRPC else "http://localhost:4318"
        raise DdptraceError(f"{variable} is {shown(said)!r}, no address of a collector; give one as {example}")
    path = urlsplit(said).path.rstrip("/")
    if protocol == HTTP and variable == ENDPOINT and path.endswith(("/v1/traces", "/v1/metrics")):
        raise DdptraceError(
            f"{variable} is {shown(said)!r}, to which the path of each signal is added once more; leave "
            f"{path[path.rindex('/v1/') :]} away, or set OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT instead"
        )


def _protocol(environ: Mapping[str, str], signal: str) -> str:
    own, common = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    said = environ.get(own, "").strip() or environ.get(common, "").strip()
    if not said:
        return GRPC if is_for_grpc(said_endpoint(environ, signal)) else HTTP
    if said not in PROTOCOLS:
        raise DdptraceError(f"{own if environ.get(own) else common} is {said!r}; give {' or '.join(PROTOCOLS)}")
    return said
