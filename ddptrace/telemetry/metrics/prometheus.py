"""Serves metrics to a Prometheus server.

The numbers are those sent over OTLP, under the names of OpenTelemetry's translation, so the same dashboards and alerts
work with both.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Final

from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric, NumberDataPoint
from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ddptrace.errors import DdptraceError
from ddptrace.telemetry.common_attributes import RANK, RUN_ID
from ddptrace.telemetry.metrics.instruments import INSTRUMENTS, Instrument, Kind
from ddptrace.telemetry.metrics.totals import Totals, metrics_data

UNITS: Final[Mapping[str, str]] = {"s": "seconds", "By": "bytes", "By/s": "bytes_per_second"}
"""The units that become part of a name. An annotation in braces does not, and "1" only for a gauge, as a ratio."""

STOP_EVERY_S: Final = 0.1
"""Longest time that the server takes to stop."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
FAMILIES: Final[Mapping[Kind, type[Family]]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def unit_of(instrument: Instrument) -> str:
    """Return the unit at the end of a name, "" if there is none."""
    return "ratio" if instrument.unit == "1" and instrument.kind is Kind.GAUGE else UNITS.get(instrument.unit, "")


def name_of(instrument: Instrument) -> str:
    """Return the instrument's name in Prometheus. A histogram's series add `_bucket`, `_sum` and `_count` to it."""
    name, unit = instrument.name.replace(".", "_"), unit_of(instrument)
    if unit and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    return f"{name}_total" if instrument.kind is Kind.COUNTER else name


def label_of(attribute: str) -> str:
    return attribute.replace(".", "_")


class Server:
    """Answers on any path until it is closed."""

    def __init__(self, totals: Totals, port: int, address: str) -> None:
        registry = CollectorRegistry(auto_describe=False)
        self._scraped = threading.Event()
        registry.register(_Totals(totals, self._scraped))
        self._server = _listening(port, address, registry)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_EVERY_S,), name="ddptrace-prometheus", daemon=True
        )
        self._thread.start()
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def wait_for_scrape(self, for_s: float) -> bool:
        """Wait at most `for_s` seconds for a scrape that begins from now on. Return whether one came."""
        self._scraped.clear()
        return self._scraped.wait(for_s)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(totals: Totals, port: int, *, address: str = "127.0.0.1") -> Server:
    """Serve the totals as of each scrape from a separate thread; a context manager.

    Port 0 takes a free port, which is in `url`. Raises DdptraceError if the address or port cannot be used.
    """
    return Server(totals, port, address)


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Skip the name look-up of the standard server, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]


class _HttpServer6(_HttpServer):
    address_family = socket.AF_INET6


def _listening(port: int, address: str, registry: CollectorRegistry) -> _HttpServer:
    kind = _HttpServer6 if ":" in address else _HttpServer
    try:
        return kind((address, port), MetricsHandler.factory(registry))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        is_foreign = isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL
        what = "an address of this machine" if is_foreign else "another port, or 0 for a free one"
        raise DdptraceError(f"metrics cannot be served at {address} port {port}: {why}; give {what}") from None


class _Totals(Collector):
    """Makes the metrics anew for each scrape."""

    def __init__(self, totals: Totals, scraped: threading.Event) -> None:
        self._totals = totals
        self._scraped = scraped

    def collect(self) -> Iterable[Family]:
        """Return one family per instrument, without those that have no point yet."""
        families = {instrument.name: (instrument, _family(instrument)) for instrument in INSTRUMENTS}
        for resource in metrics_data(self._totals, time.time_ns()).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    _add(*families[metric.name], metric)
        self._scraped.set()
        return [family for _, family in families.values() if family.samples]


def _attributes(instrument: Instrument) -> tuple[str, ...]:
    return (RUN_ID, RANK, *instrument.attributes)


def _family(instrument: Instrument) -> Family:
    labels = [label_of(name) for name in _attributes(instrument)]
    return FAMILIES[instrument.kind](name_of(instrument), instrument.meaning, labels=labels, unit=unit_of(instrument))


def _add(instrument: Instrument, family: Family, metric: Metric) -> None:
    """Add a metric's points. Unknown attributes become empty labels, which to Prometheus is the same as no label."""
    for point in metric.data.data_points:
        labels = [str((point.attributes or {}).get(name, "")) for name in _attributes(instrument)]
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(point, HistogramDataPoint)
            family.add_metric(labels, list(_buckets(point)), point.sum)
        else:
            assert isinstance(point, NumberDataPoint)
            family.add_metric(labels, point.value)


def _buckets(point: HistogramDataPoint) -> Iterator[tuple[str, float]]:
    """Yield cumulative counts, as Prometheus wants them."""
    counted = 0
    for bound, count in zip((*point.explicit_bounds, float("inf")), point.bucket_counts, strict=True):
        counted += count
        yield floatToGoString(bound), counted  # type: ignore[no-untyped-call]
