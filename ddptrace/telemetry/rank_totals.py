"""The totals of one rank: what of its rows is counted, and that nothing is counted twice."""

from __future__ import annotations

from collections.abc import Container, Set
from typing import Final

from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.live.batch import Identity, Losses
from ddptrace.telemetry import instruments as of
from ddptrace.telemetry.attributes import Value
from ddptrace.telemetry.calls import StepsAt, whole_calls
from ddptrace.telemetry.counting import BucketCounter, CollectiveCounter, StepCounter
from ddptrace.telemetry.points import Bounded, Points
from ddptrace.telemetry.resources import resource_of
from ddptrace.telemetry.rows import Meeting, RankRows

REASONS: Final = {
    "without_room": "no_room",
    "in_bursts": "burst",
    "unwritable": "unwritable",
    "torn": "torn",
    "unread_records": "unread",
}
"""Of `Losses` in records, by the name of its field."""

Launched = tuple[int | None, CollectiveRow]
"""A whole call, and the step that launched it."""


class RankTotals:
    """`points` are those of all steps so far."""

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
        self._groups = Bounded(of.COLLECTIVES_MAX)
        self._is_told = False
        self.lost(Losses())

    def identify(self, identity: Identity) -> None:
        if identity != self.identity:
            self.identity, self.resource = identity, resource_of(identity)
            if self._is_told:
                self._tell_run()

    def _tell_run(self) -> None:
        """From the first rows on: what would become known later would be another series."""
        self._is_told = True
        meta = self.identity.meta
        versions = meta.get("versions")
        torch = versions.get("torch") if isinstance(versions, dict) else None
        known = (meta.get("world_size"), ",".join(self._backends) or None, torch, meta.get("host"))
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
        """The calls that are counted now."""
        self.start_unix_ns = rows.zero_unix_ns
        if not self._is_told or (rows.backends and rows.backends != self._backends):
            self._backends = rows.backends
            self._tell_run()
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
        return calls

    def meet(self, group: str, meeting: Meeting | None) -> None:
        """What one of its collectives tells beside those of the other ranks."""
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
        """What is not told yet: a rank that is late once is late at every collective that the others have in flight."""
        if meeting.lateness_ns is None or meeting.last_at_ns is None:
            return 0
        begin = max(meeting.last_at_ns - meeting.lateness_ns, self._late_until_ns)
        self._late_until_ns = max(self._late_until_ns, meeting.last_at_ns)
        return max(0, meeting.last_at_ns - begin)


def _value(told: object) -> Value:
    """ "" where it is not known: the same as none in Prometheus."""
    return told if isinstance(told, str | int) else ""
