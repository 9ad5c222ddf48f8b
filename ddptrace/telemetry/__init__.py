"""From the records of a run to OpenTelemetry spans and metrics, off the training thread. Only this room imports
opentelemetry, and importing the room itself does not: a training that exports nothing is not to pay for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptrace.telemetry.exporter import Exporter

__all__ = ["Exporter"]


def __getattr__(name: str) -> object:
    if name != "Exporter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ddptrace.telemetry.exporter import Exporter

    return Exporter
