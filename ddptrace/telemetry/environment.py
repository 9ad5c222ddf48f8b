"""Reads what the standard `OTEL_*` variables ask for, checks for the packages of the extra `ddptrace[telemetry]`, and
warns of what telemetry could not do.

Nothing here imports OpenTelemetry or another package of the extra, because a training calls this when it starts.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from ddptrace.errors import DdptraceError, printable

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
SCHEMES: Final = ("http", "https")
NAMES_OF_GRPC: Final = ("dns:", "unix:", "unix-abstract:", "ipv4:", "ipv6:", "vsock:", "xds:")
"""Prefixes of names that gRPC resolves itself."""
PROTOCOLS: Final = (GRPC, HTTP)
GRPC_PORT: Final = 4317
"""OpenTelemetry's default port for gRPC; HTTP has 4318."""
TRACES: Final = "traces"
METRICS: Final = "metrics"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
METRICS_EVERY_S: Final = 10.0
EXPORTERS: Final = {
    "otlp": ("otlp", None),
    "otlp_proto_grpc": ("otlp", GRPC),  # the names in OpenTelemetry's own Python packages
    "otlp_proto_http": ("otlp", HTTP),
    "console": ("console", None),
    "prometheus": ("prometheus", None),
    "none": (None, None),
}

EXTRA: Final = ("opentelemetry", "prometheus_client", "grpc", "requests", "urllib3", "google")
"""What modules of the extra's packages begin with."""
NEEDED: Final = {
    GRPC: ("grpc", "opentelemetry.exporter.otlp.proto.grpc"),
    HTTP: ("requests", "opentelemetry.exporter.otlp.proto.http"),
    "prometheus": ("prometheus_client",),
}
"""By protocol of OTLP, or exporter: the packages that it needs beside the SDK."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The exporters of each signal: `otlp`, `console`, and for metrics `prometheus`. The protocols are those of
    OTLP."""

    traces: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    traces_protocol: str = HTTP
    metrics_protocol: str = HTTP

    def __bool__(self) -> bool:
        return bool(self.traces or self.metrics)


def wanted(environ: Mapping[str, str]) -> Wanted:
    """Return the exporters that the variables ask for.

    Raises:
        DdptraceError: a variable has a value that ddptrace does not know, or an invalid number or address.
    """
    if is_disabled(environ):
        return Wanted()
    (traces, traces_protocol), (metrics, metrics_protocol) = (
        _exporters_of(environ, signal) for signal in (TRACES, METRICS)
    )
    if "prometheus" in metrics:
        prometheus_address(environ)
    if set(metrics) - {"prometheus"}:
        metrics_every_s(environ)
    return Wanted(traces, metrics, traces_protocol, metrics_protocol)


def switched_off(environ: Mapping[str, str]) -> str | None:
    """Return the assignments that switch export off, or None."""
    if is_disabled(environ):
        return "OTEL_SDK_DISABLED=true"
    names = map(_exporter, (TRACES, METRICS))
    return " and ".join(f"{name}=none" for name in names if environ.get(name, "").strip().lower() == "none") or None


def is_disabled(environ: Mapping[str, str]) -> bool:
    """Whether the SDK makes nothing, whatever the other variables ask for."""
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def endpoint_of(environ: Mapping[str, str], signal: str) -> str | None:
    """Return the address that the environment gives for OTLP of this signal. An empty variable counts as unset."""
    return environ.get(_endpoint_variable(environ, signal), "").strip() or None


def is_for_grpc(endpoint: str | None) -> bool:
    """Whether the port is that of gRPC."""
    try:
        return endpoint is not None and urlsplit(endpoint).port == GRPC_PORT
    except ValueError:  # the port is invalid: whoever uses the address reports that
        return False


def prometheus_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the host and port at which Prometheus scrapes. Raises DdptraceError if the port is invalid."""
    port = environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "").strip() or "9464"
    if not port.isdecimal() or int(port) > 65535:
        raise DdptraceError(f"OTEL_EXPORTER_PROMETHEUS_PORT is {port!r}; give a number up to 65535")
    return environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "").strip() or "localhost", int(port)


def metrics_every_s(environ: Mapping[str, str]) -> float:
    """Return the seconds between two exports of metrics. Raises DdptraceError if the variable is not a number above
    0."""
    value = environ.get(INTERVAL, "").strip()
    if not value:
        return METRICS_EVERY_S
    if not value.isdecimal() or not int(value):
        raise DdptraceError(f"{INTERVAL} is {value!r}; give milliseconds, a whole number above 0, as in 10000")
    return int(value) / 1000


def _exporters_of(environ: Mapping[str, str], signal: str) -> tuple[tuple[str, ...], str]:
    variable = _exporter(signal)
    words = [word.strip().lower() for word in environ.get(variable, "").split(",") if word.strip()]
    if not words and endpoint_of(environ, signal) is not None:
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
    """Return the name of the variable that sets this signal's address."""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    return own if environ.get(own, "").strip() else ENDPOINT


def _check_endpoint(environ: Mapping[str, str], signal: str, protocol: str) -> None:
    variable, endpoint = _endpoint_variable(environ, signal), endpoint_of(environ, signal)
    if endpoint is None:
        return
    if not is_address(endpoint, protocol):
        example = "http://localhost:4317" if protocol == GRPC else "http://localhost:4318"
        raise DdptraceError(
            f"{variable} is {shown(endpoint)!r}, which is not the address of a collector; give one like {example}"
        )
    path = urlsplit(endpoint).path.rstrip("/")
    if protocol == HTTP and variable == ENDPOINT and path.endswith(("/v1/traces", "/v1/metrics")):
        raise DdptraceError(
            f"{variable} is {shown(endpoint)!r}, and the path of each signal is added to it; remove "
            f"{path[path.rindex('/v1/') :]}, or set OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT instead"
        )


def _protocol(environ: Mapping[str, str], signal: str) -> str:
    own, common = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environ.get(own, "").strip() or environ.get(common, "").strip()
    if not protocol:
        return GRPC if is_for_grpc(endpoint_of(environ, signal)) else HTTP
    if protocol not in PROTOCOLS:
        raise DdptraceError(f"{own if environ.get(own) else common} is {protocol!r}; give {' or '.join(PROTOCOLS)}")
    return protocol


def is_address(url: str, protocol: str) -> bool:
    """Whether `url` can be the address of a collector. For gRPC the scheme is optional, as in collector:4317."""
    if protocol == GRPC and url.startswith(NAMES_OF_GRPC):
        return True
    is_bare = protocol == GRPC and "://" not in url
    try:
        parts = urlsplit(f"//{url}" if is_bare else url)
        is_known = is_bare or parts.scheme in SCHEMES
        return is_known and bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:  # an invalid port, an unclosed bracket
        return False


def shown(url: str) -> str:
    """Return `url` without what may be secret: user name, password and query."""
    without_user = re.sub(r"^([a-zA-Z][\w+.-]*://|//)?.*@", r"\1***@", url)
    return printable(re.sub(r"[?#].*", "?***", without_user))


@contextlib.contextmanager
def extra() -> Iterator[None]:
    """Turn the failed import of a package of the extra inside the `with` block into a clear error.

    Raises:
        DdptraceError: a package is missing, or refuses the value of an environment variable.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(EXTRA):
            raise
        raise _missing(error.name or "") from None
    except ValueError as error:  # OpenTelemetry reads some variables while it is imported
        raise DdptraceError(f"OpenTelemetry cannot be used: {printable(error)}") from None


def check_extra(asked: Wanted) -> None:
    """Raise DdptraceError if a package is missing that these exporters need."""
    for names, protocol in ((asked.traces, asked.traces_protocol), (asked.metrics, asked.metrics_protocol)):
        for name in names:
            for package in ("opentelemetry.sdk", *NEEDED.get(protocol if name == "otlp" else name, ())):
                if not _is_there(package):
                    raise _missing(package)


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
    except ValueError:  # a module that somebody made at run time: it is there
        return True


def _missing(package: str) -> DdptraceError:
    return DdptraceError(f"exporting needs {package}, which is not installed: pip install 'ddptrace[telemetry]'")


def warn(message: str, stacklevel: int) -> None:
    """Warn. `stacklevel` is that of `warnings.warn`, counted from the caller."""
    message = printable(message)
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:  # the program turns warnings into errors
        sys.stderr.write(f"{message}\n")
