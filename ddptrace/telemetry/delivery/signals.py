"""The two kinds of things that OTLP carries here, and what it answers about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ddptrace.telemetry.delivery.destination import ACCEPTED, Outcome
from ddptrace.telemetry.delivery.quoted import quoted
from ddptrace.telemetry.environment import METRICS, TRACES


@dataclass(frozen=True, slots=True)
class Signal:
    """`rejected`: the field that counts what was refused out of a request that was otherwise accepted."""

    name: str
    response: type[Message]
    rejected: str

    @property
    def path(self) -> str:
        """Below the address of a collector that takes HTTP."""
        return f"v1/{self.name}"

    def read(self, answer: Message, count: int) -> Outcome:
        """What an answer says of a request that held `count` of these."""
        partial = getattr(answer, "partial_success", None)
        if partial is None:
            return ACCEPTED
        refused = max(0, min(count, int(getattr(partial, self.rejected, 0))))
        why = quoted(partial.error_message) or ("no reason given" if refused else "")
        return Outcome(True, refused, why)


SPANS: Final = Signal(TRACES, ExportTraceServiceResponse, "rejected_spans")
POINTS: Final = Signal(METRICS, ExportMetricsServiceResponse, "rejected_data_points")
