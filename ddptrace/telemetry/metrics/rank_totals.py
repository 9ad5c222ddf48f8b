"""The totals of one rank: the value of every metric, with nothing counted twice.

Sums are integers: the order of adding does not matter, and nothing is rounded before it is exported.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Final

import ddptrace.telemetry.metrics.instruments as of
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.live.batch import Identity, Losses
from ddptrace.telemetry.common_attributes import Value, resource_of
from ddptrace.telemetry.metrics.instruments import INSTRUMENTS, OTHER, Instrument, Kind
from ddptrace.telemetry.rows import Meeting, RankRows, StepsAt, whole_calls

LATEST: Final = 16
"""Number of steps with communication in the overlap ratio of the latest steps."""
REASONS: Final = {
    "without_room": "no_room",
    "in_bursts": "burst",
    "unwritable": "unwritable",
    "torn": "torn",
    "unread_records": "unread",
}
"""The reason of a loss, by the field of `Losses` that counts its records."""
Launched = tuple[int | None, CollectiveRow]
"""A whole call, and the step that launched it."""

Labels = tuple[Value, ...]
"""Values of an instrument's attributes, in its order."""


class RankTotals:
    """Adds up the rows of one rank. `points` are those of all steps so far."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.resource = resource_of(identity)
        self.points = Points()
        self.start_unix_ns = 0
        self._next_step = 0
        self._has_strays = False
        self._late_until_ns = 0
        self._backends: tuple[str, ...] = ()
        self._steps = StepCounter(self.points)
        self._buckets = BucketCounter(self.points)
        self._collectives = CollectiveCounter(self.points)
        self._units = UnitCounter(self.points)
        self._groups = Bounded(of.COLLECTIVES_MAX)
        self._is_described = False
        self.lost(Losses())

    def identify(self, identity: Identity) -> None:
        if identity != self.identity:
            self.identity, self.resource = identity, resource_of(identity)
            if self._is_described:
                self._describe_run()

    def _describe_run(self) -> None:
        """Describe the run, once rows have come: a point with fewer attributes would be another series."""
        self._is_described = True
        meta = self.identity.meta
        versions = meta.get("versions")
        torch = versions.get("torch") if isinstance(versions, dict) else None
        of_meta = (meta.get("host"), meta.get("name"), meta.get("job_id"))
        known = (meta.get("world_size"), ",".join(self._backends) or None, torch, *of_meta)
        self.points.set_only(of.RUN_INFO, 1, tuple(map(_value, known)))

    def lost(self, losses: Losses) -> None:
        for field, reason in REASONS.items():
            self.points.raise_to(of.RECORDS_DROPPED, getattr(losses, field), (reason,))
        self.points.raise_to(of.STEPS_DROPPED, losses.unread_steps, ("unread",))

    def seen(self, unix_ns: int) -> None:
        if unix_ns:
            self.points.set(of.RECORD_TIME, unix_ns)
            self.start_unix_ns = self.start_unix_ns or unix_ns

    def add(self, rows: RankRows, steps: Container[int] | None, *, strays: bool) -> list[Launched]:
        """Count rows as `Totals.add` describes, and return the calls that were counted now."""
        self.start_unix_ns = rows.zero_unix_ns
        if not self._is_described or (rows.backends and rows.backends != self._backends):
            self._backends = rows.backends
            self._describe_run()
        chosen = self._choose(rows, steps)
        wanted: Set[int | None] = chosen | {None} if strays and not self._has_strays else chosen
        self._has_strays |= strays
        for step in rows.steps:
            if step.step in chosen:
                self._steps.add(step)
        self._steps.add_phases(row for row in rows.phases if row.step in chosen)
        for bucket in rows.buckets:
            if bucket.step in wanted:
                self._buckets.add(bucket)
        return self._add_calls(rows, wanted)

    def _choose(self, rows: RankRows, steps: Container[int] | None) -> Set[int | None]:
        whole, partial = (
            {row.step for row in table if row.step >= self._next_step and (steps is None or row.step in steps)}
            for table in (rows.steps, rows.partial_steps)
        )
        if whole or partial:
            newest = max(whole | partial)
            self.points.set(of.STEP_LAST, newest)
            self._next_step = newest + 1
        return {*whole}

    def _add_calls(self, rows: RankRows, wanted: Set[int | None]) -> list[Launched]:
        step_at = StepsAt(rows.steps)
        launched = ((step_at(row.launch_at_ns), row) for row in whole_calls(rows.collectives))
        calls = [(step, row) for step, row in launched if step in wanted]
        for _, row in calls:
            self._collectives.add(row)
            self._units.add(row)
        return calls

    def meet(self, group: str, meeting: Meeting | None) -> None:
        """Count how one collective of this rank compares with the other ranks."""
        if meeting is None:
            return
        if meeting.wait_for_peers_ns is not None:
            self.points.add(of.COLLECTIVE_WAIT_FOR_PEERS, meeting.wait_for_peers_ns)
        if meeting.last_rank is None:
            return
        is_last = meeting.last_rank == self.identity.rank
        self.points.add(of.COLLECTIVE_LAST, int(is_last))
        self.points.add(of.COLLECTIVE_LATENESS, self._lateness_ns(meeting) if is_last else 0)
        if meeting.skew_ns is not None and meeting.first_rank == self.identity.rank:
            self.points.observe(of.COLLECTIVE_SKEW, meeting.skew_ns, self._groups((group,)))

    def _lateness_ns(self, meeting: Meeting) -> int:
        """Return the part not counted yet: one delay makes a rank late at every collective that the others have in
        flight."""
        if meeting.lateness_ns is None or meeting.last_at_ns is None:
            return 0
        begin = max(meeting.last_at_ns - meeting.lateness_ns, self._late_until_ns)
        self._late_until_ns = max(self._late_until_ns, meeting.last_at_ns)
        return max(0, meeting.last_at_ns - begin)


class StepCounter:
    def __init__(self, points: Points) -> None:
        self._points = points
        self._latest: deque[tuple[int, int]] = deque(maxlen=LATEST)  # hidden, communication

    def add(self, row: StepRow) -> None:
        add = self._points.add
        self._points.observe(of.STEP_DURATION, row.wall_ns)
        for instrument, ns, labels in (
            (of.BREAKDOWN_TIME, row.compute_ns, ("compute",)),
            (of.BREAKDOWN_TIME, row.exposed_comm_ns, ("exposed_comm",)),
            (of.BREAKDOWN_TIME, row.exposed_memory_ns, ("exposed_memory",)),
            (of.BREAKDOWN_TIME, row.idle_ns, ("idle",)),
            (of.COMM_TIME, row.hidden_ns, ("hidden",)),
            (of.COMM_TIME, row.exposed_comm_ns, ("exposed",)),
            (of.COMM_WAIT, row.wait_ns, ()),
        ):
            if ns is not None:
                add(instrument, ns, labels)
        self._set_ratio(row)

    def _set_ratio(self, row: StepRow) -> None:
        if not row.comm_ns or row.hidden_ns is None:
            return
        self._latest.append((row.hidden_ns, row.comm_ns))
        hidden_ns, comm_ns = map(sum, zip(*self._latest, strict=True))
        self._points.set(of.COMM_OVERLAP_RATIO, hidden_ns / comm_ns)

    def add_phases(self, rows: Iterable[PhaseRow]) -> None:
        for row in rows:
            self._points.add(of.PHASE_TIME, row.end_at_ns - row.begin_at_ns, (row.phase,))


class BucketCounter:
    def __init__(self, points: Points) -> None:
        self._points = points
        self._bounded = Bounded(of.BUCKETS_MAX)

    def add(self, row: BucketRow) -> None:
        own: Labels = (row.reducer, row.index)
        labels = self._bounded(own)
        if row.comm_ns is not None:
            self._points.observe(of.BUCKET_DURATION, row.comm_ns, labels)
        if row.exposed_charged_ns is not None:
            self._points.add(of.BUCKET_EXPOSED_TIME, row.exposed_charged_ns, labels)
        if row.hidden_ns is not None:
            self._points.add(of.BUCKET_HIDDEN_TIME, row.hidden_ns, labels)
        if row.nbytes is not None and labels is own:  # different buckets have no common size
            self._points.set(of.BUCKET_SIZE, row.nbytes, labels)


class UnitCounter:
    """Counts calls for their units, and along their dimensions of parallelism."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._bounded = Bounded(of.UNITS_MAX)

    def add(self, row: CollectiveRow) -> None:
        if row.exposed_charged_ns is not None and row.dimension is not None:
            self._points.add(of.DIMENSION_EXPOSED_TIME, row.exposed_charged_ns, (row.dimension,))
        if row.unit is None or row.bucket is not None:
            return
        labels = self._bounded((row.unit, row.unit_role or ""))
        for instrument, value in (
            (of.UNIT_EXPOSED_TIME, row.exposed_charged_ns),
            (of.UNIT_HIDDEN_TIME, row.hidden_ns),
            (of.UNIT_IO, row.nbytes),
        ):
            if value is not None:
                self._points.add(instrument, value, labels)


class CollectiveCounter:
    def __init__(self, points: Points) -> None:
        self._points = points
        self._bounded = Bounded(of.COLLECTIVES_MAX)

    def add(self, row: CollectiveRow) -> None:
        """Count a whole call."""
        labels = self._bounded((row.op, row.group))
        self._points.add(of.COLLECTIVE_CALLS, 1, labels)
        if row.nbytes is not None:
            self._points.add(of.COLLECTIVE_IO, row.nbytes, labels)
        if row.comm_ns is not None:
            self._points.add(of.COLLECTIVE_TIME, row.comm_ns, labels)
        if row.busbw_bytes_per_s is not None:
            self._points.observe(of.COLLECTIVE_BUS_BANDWIDTH, round(row.busbw_bytes_per_s), labels)


def _value(found: object) -> Value:
    """Return an empty text for an unknown value, which to Prometheus is the same as no label."""
    return found if isinstance(found, str | int) else ""


@dataclass(slots=True)
class Spread:
    """A histogram. `counts` has one number per bound, of the values up to it and above the bound before, and one for
    the values above the last bound."""

    counts: list[int]
    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    def add(self, bounds: Sequence[int], value: int) -> None:
        self.counts[bisect_left(bounds, value)] += 1
        self.least = min(self.least, value) if self.count else value
        self.most = max(self.most, value)
        self.count += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Point:
    """One number, in the instrument's integers, `Instrument.per_unit` to the unit."""

    labels: Labels
    value: int | float | Spread


class Points:
    """The counters, gauges and histograms of one rank. An instrument without a value has no point."""

    def __init__(self) -> None:
        self._numbers: dict[Instrument, dict[Labels, int | float]] = {}
        self._spreads: dict[Instrument, dict[Labels, Spread]] = {}

    def add(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        numbers = self._numbers.setdefault(instrument, {})
        numbers[labels] = numbers.get(labels, 0) + value

    def set(self, instrument: Instrument, value: int | float, labels: Labels = ()) -> None:
        self._numbers.setdefault(instrument, {})[labels] = value

    def raise_to(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        """Set a counter that somebody else counts; it never goes down."""
        numbers = self._numbers.setdefault(instrument, {})
        numbers[labels] = max(numbers.get(labels, 0), value)

    def set_only(self, instrument: Instrument, value: int | float, labels: Labels) -> None:
        """Set the instrument's only point; one with other attributes is removed."""
        self._numbers[instrument] = {labels: value}

    def observe(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        bounds = integer_bounds(instrument)
        spreads = self._spreads.setdefault(instrument, {})
        spread = spreads.get(labels)
        if spread is None:
            spread = spreads[labels] = Spread([0] * (len(bounds) + 1))
        spread.add(bounds, value)

    def all(self) -> Iterator[tuple[Instrument, list[Point]]]:
        """Yield all points as of now, in the order of `INSTRUMENTS`; later changes do not affect them."""
        for instrument in INSTRUMENTS:
            if instrument.kind is Kind.HISTOGRAM:
                spreads = self._spreads.get(instrument, {})
                found = [Point(labels, _copied(spread)) for labels, spread in spreads.items()]
            else:
                found = [Point(labels, value) for labels, value in self._numbers.get(instrument, {}).items()]
            if found:
                yield instrument, found


class Bounded:
    """Passes the first `most` different labels through, and replaces all others by `OTHER`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._met: set[Labels] = set()

    def __call__(self, labels: Labels) -> Labels:
        if labels in self._met:
            return labels
        if len(self._met) < self._most:
            self._met.add(labels)
            return labels
        return (OTHER,) * len(labels)


@cache
def integer_bounds(instrument: Instrument) -> tuple[int, ...]:
    return tuple(round(bound * instrument.per_unit) for bound in instrument.bounds)


def _copied(spread: Spread) -> Spread:
    made = copy.copy(spread)
    made.counts = list(spread.counts)
    return made
