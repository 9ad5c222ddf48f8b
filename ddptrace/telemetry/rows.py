"""The rows of one rank that spans and metrics are made of, wherever they come from: a batch of a run that still grows,
or the result of one that is over. Nothing here knows of OpenTelemetry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow, GroupRow
from ddptrace.analysis.tables.steps import PartialStepRow, PhaseRow, StepRow
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.live.batch import RankBatch
from ddptrace.telemetry.parents import Parent, parent_of


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective of a rank beside the other ranks' of it. Nanoseconds; None: not comparable. `lateness_ns`: from
    the last arrival but one to the last, which was at `last_at_ns`; `first_rank`: the lowest of its ranks."""

    wait_for_peers_ns: int | None
    transfer_ns: int | None
    last_rank: int | None
    skew_ns: int | None
    lateness_ns: int | None = None
    first_rank: int | None = None
    last_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankRows:
    """One rank's rows, in time order. `groups`: the global ranks of its process groups, in the groups' own order, by
    name. `meetings`: by `seq`, where other ranks are
    known too. `parents`: the spans that were active where ranks entered their traces, None where none was; a rank that
    is not in it has not been heard of. `clock`: the name of the clock that instants are of, "" where it does not matter
    any more; `tie_ns`: Unix time less that clock. `backends`: of its process groups."""

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


def of_batch(batch: RankBatch) -> RankRows:
    """Of a run that grows: what one rank knows by itself."""
    tables, identity = batch.tables, batch.identity
    return RankRows(
        identity.run_id, batch.zero_unix_ns, identity.rank,
        tables.steps, tables.partial_steps, tables.phases, tables.buckets, tables.collectives, tables.traffic,
        groups=dict(tables.facts.groups), parents={identity.rank: parent_of(identity.meta)},
        clock=tables.clock, tie_ns=tables.tie_ns, backends=tables.facts.backends,
    )  # fmt: skip


def of_result(result: Result, parents: Mapping[int, Parent | None] | None = None) -> Iterator[RankRows]:
    """Of a run that was analyzed, by rank. `parents` as in `RankRows`: a result does not know them."""
    steps, partial_steps, phases = _by_rank(result.steps), _by_rank(result.partial_steps), _by_rank(result.phases)
    buckets, collectives, traffic = _by_rank(result.buckets), _by_rank(result.collectives), _by_rank(result.traffic)
    groups, meetings = _groups(result.groups), _meetings(result)
    for rank in sorted(row.rank for row in result.ranks):
        yield RankRows(
            result.run_id, result.zero_unix_ns, rank,
            tuple(steps[rank]), tuple(partial_steps[rank]), tuple(phases[rank]), tuple(buckets[rank]),
            tuple(collectives[rank]), tuple(traffic[rank]),
            groups=groups[rank], meetings=meetings[rank], parents=parents or {},
        )  # fmt: skip


class _OfRank(Protocol):
    @property
    def rank(self) -> int: ...


Row = TypeVar("Row", bound=_OfRank)


def _by_rank(rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    """Each row is looked at once, however many ranks there are."""
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.rank].append(row)
    return found


def _groups(rows: Iterable[GroupRow]) -> Mapping[int, dict[str, tuple[int, ...]]]:
    """Of each rank those that it is in: two groups may have one name on different ranks."""
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
            arrival.wait_ns, arrival.transfer_ns, match.last_rank, match.skew_ns, match.blame_ns, min(match.ranks),
            match.last_arrival_at_ns,
        )  # fmt: skip
    return found
