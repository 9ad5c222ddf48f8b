"""Checks for the packages of the extra `ddptrace[telemetry]`, and warns of what telemetry could not do.

Nothing here imports the packages, because a training calls this when it starts.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from ddptrace.errors import DdptraceError, printable
from ddptrace.telemetry.environment import GRPC, HTTP, Wanted

NAMES: Final = "opentelemetry", "prometheus_client", "grpc", "requests", "urllib3", "google"
NEEDED: Final = {
    GRPC: ("grpc", "opentelemetry.exporter.otlp.proto.grpc"),
    HTTP: ("requests", "opentelemetry.exporter.otlp.proto.http"),
    "prometheus": ("prometheus_client",),
}


@contextlib.contextmanager
def extra() -> Iterator[None]:
    """Turn the failed import of such a package inside the `with` block into a clear error.

    Raises:
        DdptraceError: a package is missing, or refuses the value of an environment variable.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(NAMES):
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
