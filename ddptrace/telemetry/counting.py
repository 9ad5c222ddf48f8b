"""What one rank's rows add to its points: of steps and phases, of buckets, and of collectives by themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.telemetry import instruments as of
from ddptrace.telemetry.points import Bounded, Labels, Points

LATEST: Final = 16
"""Steps with communication whose overlap ratio is told as that of the latest ones."""


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
        self._tell_ratio(row)

    def _tell_ratio(self, row: StepRow) -> None:
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
        if row.nbytes is not None and labels is own:  # the size of many different ones says nothing
            self._points.set(of.BUCKET_SIZE, row.nbytes, labels)


class CollectiveCounter:
    def __init__(self, points: Points) -> None:
        self._points = points
        self._bounded = Bounded(of.COLLECTIVES_MAX)

    def add(self, row: CollectiveRow) -> None:
        """`row`: of a whole call."""
        labels = self._bounded((row.op, row.group))
        self._points.add(of.COLLECTIVE_CALLS, 1, labels)
        if row.nbytes is not None:
            self._points.add(of.COLLECTIVE_IO, row.nbytes, labels)
        if row.comm_ns is not None:
            self._points.add(of.COLLECTIVE_TIME, row.comm_ns, labels)
        if row.busbw_bytes_per_s is not None:
            self._points.observe(of.COLLECTIVE_BUS_BANDWIDTH, round(row.busbw_bytes_per_s), labels)
