"""The terminal, in the words of OpenTelemetry's own console exporters."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

from ddptrace.telemetry.delivery.destination import ACCEPTED, Outcome


class Console:
    name = "the terminal"

    def __init__(self) -> None:
        self._spans = ConsoleSpanExporter(out=sys.stdout)
        self._metrics = ConsoleMetricExporter(out=sys.stdout)

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome:
        try:
            self._spans.export(batch)
        except OSError as error:  # whoever read from us is gone, and will not come back
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
