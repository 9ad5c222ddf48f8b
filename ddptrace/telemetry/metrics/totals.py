"""The totals of all ranks as of now, for OTLP, Prometheus and JSON alike, and as the OpenTelemetry SDK's own data.

A run that grows is added batch by batch (`take`), a finished one in one go (`delivery/exports.py`). Both give the same
numbers, except for those of profiler windows and of ranks on other hosts, which are known only afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

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
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.telemetry.common_attributes import INT_MAX, RANK, RUN_ID, Value, carried
from ddptrace.telemetry.metrics.instruments import RECORD_TIME, Instrument, Kind
from ddptrace.telemetry.metrics.meetings import HostMeetings
from ddptrace.telemetry.metrics.rank_totals import Point, RankTotals, Spread
from ddptrace.telemetry.rows import RankRows, of_batch
from ddptrace.version import __version__

CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


@dataclass(frozen=True, slots=True)
class RankPoints:
    """One rank's points at one moment. Its sums count from `start_unix_ns`."""

    identity: Identity
    resource: Resource
    start_unix_ns: int
    points: Sequence[tuple[Instrument, list[Point]]]


class Totals:
    """Holds the totals of every rank. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._ranks: dict[tuple[str, int], RankTotals] = {}
        self._meetings = HostMeetings()

    def of_rank(self, identity: Identity) -> None:
        """Add a rank: it has points from now on, even before its first step."""
        with self._lock:
            self._rank(identity.run_id, identity.rank).identify(identity)

    def take(self, batch: RankBatch) -> None:
        """Add all of a batch: the rank, its losses, and its complete steps."""
        who = batch.identity
        with self._lock:
            self.of_rank(who)
            self.lost(who.run_id, who.rank, batch.losses)
            self.add(of_batch(batch), steps=batch.steps, strays=batch.is_last)

    def add(self, rows: RankRows, *, steps: Container[int] | None = None, strays: bool = True) -> None:
        """Count these steps, or all of them for None, and what they launched. A rank's steps come in order: a step that
        was counted, and all before it, are not counted again. `strays`: also count what is outside of all steps, once.
        """
        with self._lock:
            rank = self._rank(rows.run_id, rows.rank)
            calls = rank.add(rows, steps, strays=strays)
            if rows.meetings or not rows.clock:
                for _, call in calls:
                    rank.meet(call.group, rows.meetings.get(call.seq))
                return
            for met in self._meetings.add(rows, calls):
                self._rank(rows.run_id, met.rank).meet(met.group, met.meeting)

    def lost(self, run_id: str, rank: int, losses: Losses) -> None:
        """Set which records of a rank are missing so far."""
        with self._lock:
            self._rank(run_id, rank).lost(losses)
            if losses.records:
                self._meetings.distrust(run_id, rank)

    def seen(self, run_id: str, rank: int, unix_ns: int) -> None:
        """Set when the rank's newest record of training was made, 0 if unknown. Records of its clock do not count
        (`RankNow.worked_unix_ns`): a rank that hangs still makes them."""
        with self._lock:
            self._rank(run_id, rank).seen(unix_ns)

    def snapshot(self) -> list[RankPoints]:
        """Return all points, by attempt and rank. Ranks of earlier attempts have no newest record: they cannot hang."""
        with self._lock:
            ranks = sorted(self._ranks.values(), key=lambda rank: (rank.identity.attempt, rank.identity.rank))
            newest = max((rank.identity.attempt for rank in ranks), default=0)
            return [_now(rank, is_past=rank.identity.attempt < newest) for rank in ranks]

    def _rank(self, run_id: str, rank: int) -> RankTotals:
        key = run_id, rank
        if key not in self._ranks:
            self._ranks[key] = RankTotals(Identity(run_id, rank, 0, {}))
        return self._ranks[key]


def _now(rank: RankTotals, *, is_past: bool) -> RankPoints:
    points = [
        (instrument, found) for instrument, found in rank.points.all() if not (is_past and instrument is RECORD_TIME)
    ]
    return RankPoints(rank.identity, rank.resource, rank.start_unix_ns, points)


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
