"""Packages that not everyone has. Nothing here imports them: training asks this at its start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from ddptrace.errors import DdptraceError, printable
from ddptrace.telemetry.addresses import GRPC, HTTP
from ddptrace.telemetry.environment import Wanted

NAMES: Final = "opentelemetry", "prometheus_client", "grpc", "requests", "urllib3", "google"
NEEDED: Final = {
    GRPC: ("grpc", "opentelemetry.exporter.otlp.proto.grpc"),
    HTTP: ("requests", "opentelemetry.exporter.otlp.proto.http"),
    "prometheus": ("prometheus_client",),
}


@contextlib.contextmanager
def extra() -> Iterator[None]:
    """Around what needs them. Raises DdptraceError where they are missing, or refuse what the environment says."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(NAMES):
            raise
        raise _missing(error.name or "") from None
    except ValueError as error:  # OpenTelemetry reads some variables while it is imported
        raise DdptraceError(f"OpenTelemetry cannot be used: {printable(error)}") from None


def check_extra(asked: Wanted) -> None:
    """Raises DdptraceError where what is asked for needs a package that this process does not find."""
    used = {"traces": (asked.traces, asked.traces_protocol), "metrics": (asked.metrics, asked.metrics_protocol)}
    for names, protocol in used.values():
        for one in names:
            for package in ("opentelemetry.sdk", *NEEDED.get(protocol if one == "otlp" else one, ())):
                if not _is_there(package):
                    raise _missing(package)


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # that which it is a part of
        return False
    except ValueError:  # somebody's own module: it is there, whatever it is
        return True


def _missing(package: str) -> DdptraceError:
    return DdptraceError(f"exporting needs {package}, which is not installed: pip install 'ddptrace[telemetry]'")
