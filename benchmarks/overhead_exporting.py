"""Tracing with telemetry: what making and sending spans beside the steps costs, and how many a process can send."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptrace.bench.traced import recording
from ddptrace.errors import DdptraceError
from ddptrace.units import duration

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
BEGUN_S: Final = 3.0
"""Time until the exporting process has started, which each job pays once and not in each step."""
SUSTAINED_S: Final = 3.0


@contextmanager
def from_a_companion(run: Path, address: str) -> Iterator[None]:
    """Trace with the `OTEL_*` variables set, so that a separate process exports."""
    os.environ[ENDPOINT] = address
    try:
        with recording(run):
            time.sleep(BEGUN_S)
            yield
    finally:
        del os.environ[ENDPOINT]


def provider_for(address: str) -> TracerProvider:
    """Return a provider as OpenTelemetry's documentation sets it up."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
    return provider


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast one process reads, makes and sends the spans of a recorded run to a collector on the same machine.
    `cpu_ns`: its processor time for one span."""

    spans_per_s: float
    cpu_ns: float

    def words(self) -> str:
        return (
            f"A process beside the training makes and sends at most {self.spans_per_s:,.0f} spans a second, from the "
            f"records to the collector, with {duration(self.cpu_ns)} of processor time each. Inside the training "
            "process, its interpreter would lose this time."
        )


def sustained(run: Path, address: str) -> Rate:
    """Export the same run again and again, for SUSTAINED_S."""
    begin_ns, begin_cpu_ns, spans = time.perf_counter_ns(), time.process_time_ns(), 0
    while (passed_ns := time.perf_counter_ns() - begin_ns) < SUSTAINED_S * 1e9:
        spans += _exported(run, address)
    return Rate(spans * 1e9 / passed_ns, (time.process_time_ns() - begin_cpu_ns) / spans)


def _exported(run: Path, address: str) -> int:
    from ddptrace.telemetry.delivery.delivery import Patience
    from ddptrace.telemetry.delivery.followed import Following
    from ddptrace.telemetry.delivery.targets import targets_of_options

    stop = threading.Event()
    patience = Patience(SUSTAINED_S, ended=lambda: True, stop=stop)
    following = Following(run, targets_of_options(address, None, None, None), patience, lambda sentence: None)
    following.start(lambda follower: follower.is_over, stop)
    following.wait(20 * SUSTAINED_S)
    spans = sum(delivery.sent for delivery in following.deliveries if delivery.kind == "spans")
    if not spans or not all(delivery.is_whole for delivery in following.deliveries):
        raise DdptraceError(f"the spans of {run} were not delivered to {address}: {following.error or 'nothing came'}")
    return spans
