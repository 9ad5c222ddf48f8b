"""From a rank's own records to OpenTelemetry spans, off the training thread. Only this room imports opentelemetry."""

from ddptrace.telemetry.exporter import Exporter

__all__ = ["Exporter"]
