"""Where everything is to go: as the command line says, else as the `OTEL_*` variables do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddptrace.errors import DdptraceError
from ddptrace.telemetry.addresses import GRPC, HTTP, is_address, shown
from ddptrace.telemetry.delivery.destination import Destination
from ddptrace.telemetry.environment import (
    METRICS,
    TRACES,
    is_for_grpc,
    prometheus_address,
    said_endpoint,
    switched_off,
    wanted,
)
from ddptrace.telemetry.extra import extra

NOTHING_SAID = (
    "nothing says where to export to; give --otlp URL, --prometheus PORT or --otlp-json FILE, or set "
    "OTEL_EXPORTER_OTLP_ENDPOINT"
)


@dataclass(frozen=True, slots=True)
class Targets:
    """`prometheus`: host and port of an endpoint to be scraped."""

    spans: tuple[Destination, ...] = ()
    metrics: tuple[Destination, ...] = ()
    prometheus: tuple[str, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.spans or self.has_metrics)

    @property
    def has_metrics(self) -> bool:
        return bool(self.metrics) or self.prometheus is not None


def said_targets(
    otlp: str | None, protocol: str | None, prometheus: tuple[str, int] | None, otlp_json: Path | None
) -> Targets:
    """Those of the command line; none of them where it names none. Raises DdptraceError for a wrong word."""
    found: list[Destination] = []
    with extra():
        if otlp is not None:
            found += [_otlp(_base(otlp), protocol or (GRPC if is_for_grpc(otlp) else HTTP))]
        if otlp_json is not None:
            from ddptrace.telemetry.otlp_json import OtlpJson

            found += [OtlpJson(otlp_json)]
    return Targets(tuple(found), tuple(found), prometheus)


def environments_targets(environ: Mapping[str, str], protocol: str | None = None) -> Targets:
    """`protocol`: of OTLP, whatever the environment says. Raises DdptraceError for words that are not known."""
    if protocol is not None:
        environ = {**environ, **{f"OTEL_EXPORTER_OTLP_{one.upper()}_PROTOCOL": protocol for one in (TRACES, METRICS)}}
    asked = wanted(environ)
    with extra():
        spans = [_named(one, environ, TRACES, protocol or asked.traces_protocol) for one in asked.traces]
        metrics = [
            _named(one, environ, METRICS, protocol or asked.metrics_protocol)
            for one in asked.metrics if one != "prometheus"
        ]  # fmt: skip
    scraped = prometheus_address(environ) if "prometheus" in asked.metrics else None
    return Targets(tuple(spans), tuple(metrics), scraped)


def nothing_said(environ: Mapping[str, str]) -> str:
    """Why there are no targets."""
    off = switched_off(environ)
    return NOTHING_SAID if off is None else f"nothing is exported, since the environment says {off}; unset it"


def _named(name: str, environ: Mapping[str, str], signal: str, protocol: str) -> Destination:
    if name == "otlp":
        return _otlp(None, protocol, said_endpoint(environ, signal))
    from ddptrace.telemetry.delivery.console import Console

    return Console()


def _otlp(base: str | None, protocol: str, told: str | None = None) -> Destination:
    """`base` None: where the environment says, which is `told` to people."""
    from ddptrace.telemetry.delivery.otlp import Otlp

    default = "http://localhost:4317" if protocol == GRPC else "http://localhost:4318"
    return Otlp(base, protocol, shown(base or told or default))


def _base(url: str) -> str:
    """The collector's address without the path of one signal. Raises DdptraceError where it is none."""
    if not is_address(url, HTTP):
        raise DdptraceError(f"--otlp {shown(url)} is no address of a collector; give one as http://localhost:4318")
    return url.rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/metrics")
