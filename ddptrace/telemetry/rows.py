"""The rows of one rank that spans and metrics are made of.

They come from a batch of a run that still grows, or from the result of a finished one. Nothing here knows of
OpenTelemetry.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow, GroupRow
from ddptrace.analysis.tables.steps import PartialStepRow, PhaseRow, StepRow
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.live.batch import RankBatch

TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
"""W3C Trace Context in the form that ddptrace writes: version, trace id, span id, flags."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The ids of a span that the user made. Bit 0 of `flags`: the span is sampled."""

    trace_id: int  # 128 bits, never 0
    span_id: int  # 64 bits, never 0
    flags: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective on one rank, compared with the other ranks of it. None: not comparable.

    `lateness_ns` goes from the last arrival but one to the last one, at `last_at_ns`. `first_rank` is the lowest rank.
    """

    wait_for_peers_ns: int | None
    transfer_ns: int | None
    last_rank: int | None
    skew_ns: int | None
    lateness_ns: int | None = None
    first_rank: int | None = None
    last_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankRows:
    """One rank's rows, in time order.

    `groups`: the global ranks of each of its process groups, in the group's order, by the group's name. `meetings`: by
    `seq`; empty if only this rank is known. `parents`: by rank, the span that was active when the rank entered its
    trace, or None; unknown ranks are missing. `clock`: the name of the clock of all instants, "" once the clocks are
    aligned; `tie_ns`: Unix time minus that clock. `backends`: those of its process groups.
    """

    run_id: str
    zero_unix_ns: int
    rank: int
    steps: tuple[StepRow, ...] = ()
    partial_steps: tuple[PartialStepRow, ...] = ()
    phases: tuple[PhaseRow, ...] = ()
    buckets: tuple[BucketRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    traffic: tuple[TrafficRow, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    meetings: Mapping[int, Meeting] = field(default_factory=dict)
    parents: Mapping[int, Parent | None] = field(default_factory=dict)
    clock: str = ""
    tie_ns: int | None = None
    backends: tuple[str, ...] = ()

    @property
    def parent(self) -> Parent | None:
        return self.parents.get(self.rank)


class StepsAt:
    """Finds the step of one rank that an instant falls into."""

    def __init__(self, steps: Sequence[StepRow]) -> None:
        self._steps = steps
        self._begins = [row.begin_at_ns for row in steps]

    def __call__(self, at_ns: int) -> int | None:
        """Return the ordinal of the step under way, None outside of all steps."""
        position = bisect_right(self._begins, at_ns) - 1
        return self._steps[position].step if position >= 0 and at_ns < self._steps[position].end_at_ns else None


def of_batch(batch: RankBatch) -> RankRows:
    """Return the rows of one rank of a run that grows, which know nothing of other ranks."""
    tables, identity = batch.tables, batch.identity
    return RankRows(
        identity.run_id,
        batch.zero_unix_ns,
        identity.rank,
        tables.steps,
        tables.partial_steps,
        tables.phases,
        tables.buckets,
        tables.collectives,
        tables.traffic,
        groups=dict(tables.facts.groups),
        parents={identity.rank: parent_of(identity.meta)},
        clock=tables.clock,
        tie_ns=tables.tie_ns,
        backends=tables.facts.backends,
    )


def of_result(result: Result, parents: Mapping[int, Parent | None] | None = None) -> Iterator[RankRows]:
    """Yield the rows of each rank of an analyzed run. `parents` as in `RankRows`: a result does not hold them."""
    steps, partial_steps, phases = _by_rank(result.steps), _by_rank(result.partial_steps), _by_rank(result.phases)
    buckets, collectives, traffic = _by_rank(result.buckets), _by_rank(result.collectives), _by_rank(result.traffic)
    groups, meetings = _groups(result.groups), _meetings(result)
    for rank in sorted(row.rank for row in result.ranks):
        yield RankRows(
            result.run_id,
            result.zero_unix_ns,
            rank,
            tuple(steps[rank]),
            tuple(partial_steps[rank]),
            tuple(phases[rank]),
            tuple(buckets[rank]),
            tuple(collectives[rank]),
            tuple(traffic[rank]),
            groups=groups[rank],
            meetings=meetings[rank],
            parents=parents or {},
        )


class _OfRank(Protocol):
    @property
    def rank(self) -> int: ...


Row = TypeVar("Row", bound=_OfRank)


def _by_rank(rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    """Group rows by rank in a single pass."""
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.rank].append(row)
    return found


def _groups(rows: Iterable[GroupRow]) -> Mapping[int, dict[str, tuple[int, ...]]]:
    """Return the groups of each rank: on different ranks, two groups may have the same name."""
    found: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for row in rows:
        for rank in row.ranks:
            found[rank][row.group] = row.ranks
    return found


def _meetings(result: Result) -> Mapping[int, dict[int, Meeting]]:
    matches = {match.match: match for match in result.matches}
    found: dict[int, dict[int, Meeting]] = defaultdict(dict)
    for arrival in result.arrivals:
        match = matches[arrival.match]
        found[arrival.rank][arrival.seq] = Meeting(
            arrival.wait_ns,
            arrival.transfer_ns,
            match.last_rank,
            match.skew_ns,
            match.blame_ns,
            min(match.ranks),
            match.last_arrival_at_ns,
        )
    return found


def parent_of(meta: Mapping[str, Any]) -> Parent | None:
    """Return the span that was active when a rank entered its trace. None if there was none, or its text is invalid."""
    text = meta.get("traceparent")
    found = TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else Parent(*(int(part, 16) for part in found.group(1, 2, 3)))


def whole_calls(rows: Iterable[CollectiveRow]) -> Iterator[CollectiveRow]:
    """Yield one row per call: a call that ran past the end of its step has one row for each step it ran in."""
    parts: dict[int, list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        parts[row.seq].append(row)
    for first, *others in parts.values():
        yield _joined(first, others) if others else first


def _joined(first: CollectiveRow, others: list[CollectiveRow]) -> CollectiveRow:
    every = (first, *others)
    return replace(
        first,
        exec_end_at_ns=others[-1].exec_end_at_ns,
        comm_ns=sum(row.comm_ns or 0 for row in every),
        hidden_ns=_sum(row.hidden_ns for row in every),
        exposed_ns=_sum(row.exposed_ns for row in every),
        exposed_charged_ns=_sum(row.exposed_charged_ns for row in every),
    )


def _sum(parts: Iterable[int | None]) -> int | None:
    """None if any part is None."""
    every = list(parts)
    known = [ns for ns in every if ns is not None]
    return sum(known) if len(known) == len(every) else None
