"""The totals of all ranks that are exported, as of now: one object for OTLP, Prometheus and JSON alike.

A run that grows goes in batch by batch (`take`); one that is over, in one go (`finished_run.totals_of`). Both give the
same numbers, but for what profiler windows and ranks on other hosts tell, which is known afterwards only.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource

from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.telemetry.instruments import RECORD_TIME, Instrument
from ddptrace.telemetry.meetings import HostMeetings
from ddptrace.telemetry.points import Point
from ddptrace.telemetry.rank_totals import RankTotals
from ddptrace.telemetry.rows import RankRows, of_batch


@dataclass(frozen=True, slots=True)
class RankPoints:
    """One rank's points at one moment. `start_unix_ns`: its sums count from there."""

    identity: Identity
    resource: Resource
    start_unix_ns: int
    points: Sequence[tuple[Instrument, list[Point]]]


class Totals:
    """Everything may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._ranks: dict[tuple[str, int], RankTotals] = {}
        self._meetings = HostMeetings()

    def of_rank(self, identity: Identity) -> None:
        """A rank is known by name: it has points from now on, though it may have no step yet."""
        with self._lock:
            self._rank(identity.run_id, identity.rank).identify(identity)

    def take(self, batch: RankBatch) -> None:
        """All that a batch tells: the rank, its losses, and its complete steps."""
        who = batch.identity
        with self._lock:
            self.of_rank(who)
            self.lost(who.run_id, who.rank, batch.losses)
            self.add(of_batch(batch), steps=batch.steps, strays=batch.is_last)

    def add(self, rows: RankRows, *, steps: Container[int] | None = None, strays: bool = True) -> None:
        """Count these steps, all of them for None, and what they launched. A rank's steps come in order: one that was
        counted, and all before it, count no more. `strays`: what is outside of all steps counts too, once."""
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
        """What is missing of its records so far."""
        with self._lock:
            self._rank(run_id, rank).lost(losses)
            if losses.records:
                self._meetings.distrust(run_id, rank)

    def seen(self, run_id: str, rank: int, unix_ns: int) -> None:
        """When its newest record of the training itself was made (`RankNow.worked_unix_ns`: one that hangs goes on
        recording its clock); 0: nothing tells."""
        with self._lock:
            self._rank(run_id, rank).seen(unix_ns)

    def snapshot(self) -> list[RankPoints]:
        """By attempt and rank. A rank of an attempt that was started anew has no newest record any more: it hangs no
        longer."""
        with self._lock:
            ranks = sorted(self._ranks.values(), key=lambda one: (one.identity.attempt, one.identity.rank))
            newest = max((one.identity.attempt for one in ranks), default=0)
            return [_now(one, is_past=one.identity.attempt < newest) for one in ranks]

    def _rank(self, run_id: str, rank: int) -> RankTotals:
        key = run_id, rank
        if key not in self._ranks:
            self._ranks[key] = RankTotals(Identity(run_id, rank, 0, {}))
        return self._ranks[key]


def _now(rank: RankTotals, *, is_past: bool) -> RankPoints:
    points = [(one, found) for one, found in rank.points.all() if not (is_past and one is RECORD_TIME)]
    return RankPoints(rank.identity, rank.resource, rank.start_unix_ns, points)
