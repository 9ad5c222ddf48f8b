"""The totals of all ranks as of now: one object for OTLP, Prometheus and JSON alike.

A run that grows is added batch by batch (`take`), a finished one in one go (`delivery/finished.py`). Both give the same
numbers, except for those of profiler windows and of ranks on other hosts, which are known only afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource

from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.telemetry.metrics.instruments import RECORD_TIME, Instrument
from ddptrace.telemetry.metrics.meetings import HostMeetings
from ddptrace.telemetry.metrics.rank_totals import Point, RankTotals
from ddptrace.telemetry.rows import RankRows, of_batch


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
