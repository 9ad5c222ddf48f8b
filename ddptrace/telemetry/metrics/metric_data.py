"""Converts totals to the OpenTelemetry SDK's own data: one `ResourceMetrics` per rank, cumulative sums."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ddptrace.telemetry.attributes import INT_MAX, RANK, RUN_ID, Value, carried
from ddptrace.telemetry.metrics.instruments import Instrument, Kind
from ddptrace.telemetry.metrics.rank_totals import Point, Spread
from ddptrace.telemetry.metrics.totals import RankPoints, Totals
from ddptrace.version import __version__

CUMULATIVE = AggregationTemporality.CUMULATIVE


def metrics_data(totals: Totals, now_unix_ns: int) -> MetricsData:
    """Return the metrics of all ranks as of now. Sums count from the rank's first record, or from the run's zero."""
    scope = InstrumentationScope("ddptrace", __version__)
    return MetricsData(
        [
            ResourceMetrics(rank.resource, [ScopeMetrics(scope, _metrics(rank, now_unix_ns), "")], "")
            for rank in totals.snapshot()
        ]
    )


def _metrics(rank: RankPoints, now_unix_ns: int) -> list[Metric]:
    make = _Maker(rank, now_unix_ns)
    return [make.metric(instrument, points) for instrument, points in rank.points]


class _Maker:
    """Makes the metrics of one rank at one moment."""

    def __init__(self, rank: RankPoints, now_unix_ns: int) -> None:
        self._common = {RUN_ID: carried(rank.identity.run_id), RANK: carried(rank.identity.rank)}
        self._times = rank.start_unix_ns, now_unix_ns

    def metric(self, instrument: Instrument, points: Iterable[Point]) -> Metric:
        data: Sum | Gauge | Histogram
        if instrument.kind is Kind.HISTOGRAM:
            data = Histogram([self._spread(instrument, point) for point in points], CUMULATIVE)
        else:
            numbers = [self._number(instrument, point) for point in points]
            is_sum = instrument.kind is Kind.COUNTER
            data = Sum(numbers, CUMULATIVE, is_monotonic=True) if is_sum else Gauge(numbers)
        return Metric(instrument.name, instrument.meaning, instrument.unit, data)

    def _attributes(self, instrument: Instrument, point: Point) -> dict[str, Value]:
        own = zip(instrument.attributes, point.labels, strict=True)
        return self._common | {name: carried(value) for name, value in own if value != ""}

    def _number(self, instrument: Instrument, point: Point) -> NumberDataPoint:
        assert not isinstance(point.value, Spread)
        value = in_unit(instrument, point.value)
        return NumberDataPoint(self._attributes(instrument, point), *self._times, value)

    def _spread(self, instrument: Instrument, point: Point) -> HistogramDataPoint:
        spread = point.value
        assert isinstance(spread, Spread)
        total, least, most = (in_unit(instrument, value) for value in (spread.total, spread.least, spread.most))
        return HistogramDataPoint(
            self._attributes(instrument, point),
            *self._times,
            spread.count,
            total,
            spread.counts,
            instrument.bounds,
            least,
            most,
        )


def in_unit(instrument: Instrument, value: int | float) -> int | float:
    """Convert an integer sum to the instrument's unit. A value beyond 64 bits, of damaged records, becomes a float."""
    return value if instrument.per_unit == 1 and abs(value) <= INT_MAX else value / instrument.per_unit
