"""Sums up for a reader who waited for whom, and how much of the communication is waiting and how much transfer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from ddptrace.analysis.matching.calls import Partial, partial_matches
from ddptrace.analysis.result import Result
from ddptrace.analysis.statistics import percentile
from ddptrace.analysis.summary import BucketKey, measured_steps
from ddptrace.analysis.tables.ranks import ArrivalRow, MatchRow, PathRow
from ddptrace.ops import family_of
from ddptrace.schema import Evidence

_Alike = tuple[BucketKey | None, str, str, int | None, int]
"""Bucket, and of what carried none op, group, bytes and number of ranks."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How often a rank came last, and by how much: median of what the others then waited for it alone."""

    rank: int
    last: int
    last_ratio: float  # of the collectives that it took part in and whose arrivals are known
    blame_ns: int | None


@dataclass(frozen=True, slots=True)
class MatchDigest:
    """Matched collectives that are alike. Waits are means over collectives and ranks, transfers and skews medians over
    collectives; None where no clock tells."""

    bucket: BucketKey | None
    op: str
    group: str
    nbytes: int | None
    ranks: int
    count: int
    skew_ns: int | None
    skew_p95_ns: int | None
    wait_ns: int | None
    transfer_ns: int | None
    free_wait_ns: int | None
    free_transfer_ns: int
    timed: int  # on one clock, so that both estimates are known
    agree: int  # of these
    busbw_bytes_per_s: float | None  # of the transfer alone, median
    latest: Lag | None  # that came last most often
    uncertainty_ns: int | None  # of the arrivals, the largest
    partial: bool = False  # ranks of its group are not here, so that its shortest execution tells of no transfer


@dataclass(frozen=True, slots=True)
class RankDigest:
    """`waits_ns`: of its executions per step, for peers that came later. `free`: by the estimate without clocks."""

    lag: Lag
    met: int
    waits_ns: int | None
    wait_ratio: float | None  # of its executions
    free: bool


@dataclass(frozen=True, slots=True)
class MatchDigests:
    """`steps`: so many typical steps; 0 where the run has none, then all is told, per run in place of per step."""

    steps: int
    count: int
    timed: int
    agree: int
    wait_ratio: float | None  # of all executions
    kinds: tuple[MatchDigest, ...]  # where most is waited first
    ranks: tuple[RankDigest, ...]
    only_waited: int = 0  # collectives beside these whose host's wait alone is known, which cannot be split
    here: tuple[int, int] | None = None  # ranks that are here, and of how many, where some are not


def match_digests(result: Result) -> MatchDigests:
    """Those of the typical steps; where these have none, all."""
    steps = {row.step for row in measured_steps(result.steps)[0]}
    matches = [row for row in result.matches if row.step in steps]
    if not matches:
        steps, matches = set(), list(result.matches)
    arrivals = _by_match(result.arrivals, matches)
    partial = partial_matches(matches, result.collectives)
    alike: defaultdict[_Alike, list[MatchRow]] = defaultdict(list)
    for row in matches:
        alike[_kind(row)].append(row)
    kinds = [_kind_digest(key, rows, arrivals, partial) for key, rows in alike.items()]
    kinds.sort(key=lambda kind: (-(kind.wait_ns or kind.free_wait_ns or 0) * kind.count, kind.op, kind.nbytes or 0))
    timed = [row for row in matches if row.agrees is not None]
    ratio = _wait_ratio([row for rows in arrivals.values() for row in rows])
    ranks = _rank_digests(matches, arrivals, len(steps))
    return MatchDigests(
        len(steps),
        len(matches),
        len(timed),
        sum(bool(row.agrees) for row in timed),
        ratio,
        tuple(kinds),
        ranks,
        _only_waited(result, steps),
        _here(partial.values()),
    )


def told_wait_ratio(result: Result, found: MatchDigests) -> float | None:
    """The share of the communication that waits, as the findings tell it: by lengths alone where executions were
    measured, else by all that is known."""
    time = matched_time(result)
    return found.wait_ratio if found.wait_ratio is None or time is None else time.waiting_ratio


def _here(partial: Iterable[Partial]) -> tuple[int, int] | None:
    """Of the group of which most are missing."""
    counts = {(group.here, group.size) for group in partial}
    return max(counts, key=lambda one: (one[1] - one[0], one), default=None)


def _only_waited(result: Result, steps: Collection[int]) -> int:
    """On the rank that has most of them."""
    ranks = Counter(
        row.rank
        for row in result.collectives
        if row.evidence is Evidence.HOST and row.part == 0 and (row.step in steps or not steps)
    )
    return max(ranks.values(), default=0)


def wait_of(row: ArrivalRow) -> int | None:
    """By the clocks, and where these do not tell, by lengths alone."""
    return row.free_wait_ns if row.wait_ns is None else row.wait_ns


def _by_match(arrivals: Iterable[ArrivalRow], matches: Sequence[MatchRow]) -> dict[int, list[ArrivalRow]]:
    found: dict[int, list[ArrivalRow]] = {row.match: [] for row in matches}
    for row in arrivals:
        if row.match in found:
            found[row.match].append(row)
    return found


def _kind(row: MatchRow) -> _Alike:
    if row.bucket is not None:
        return row.bucket, "", "", None, len(row.ranks)
    return None, row.op, row.group, row.nbytes, len(row.ranks)


def _kind_digest(
    key: _Alike, rows: Sequence[MatchRow], arrivals: dict[int, list[ArrivalRow]], partial: Collection[int]
) -> MatchDigest:
    skews = [row.skew_ns for row in rows if row.skew_ns is not None]
    own = [arrival for row in rows for arrival in arrivals[row.match]]
    lags = _lags(rows)
    first = rows[0]
    return MatchDigest(
        key[0],
        first.op,
        first.group,
        first.nbytes,
        key[4],
        len(rows),
        skew_ns=_median(skews),
        skew_p95_ns=percentile(sorted(skews), 95) if skews else None,
        wait_ns=_mean(row.wait_ns for row in own),
        transfer_ns=_median(row.aligned_transfer_ns for row in rows),
        free_wait_ns=_mean(row.free_wait_ns for row in own),
        free_transfer_ns=round(median(row.transfer_ns for row in rows)),
        timed=sum(row.agrees is not None for row in rows),
        agree=sum(bool(row.agrees) for row in rows),
        busbw_bytes_per_s=_rate(rows),
        latest=max(lags, key=lambda one: (one.last, -one.rank), default=None),
        uncertainty_ns=max((row.uncertainty_ns for row in rows if row.uncertainty_ns is not None), default=None),
        partial=any(row.match in partial for row in rows),
    )


def _rate(rows: Sequence[MatchRow]) -> float | None:
    known = [row.busbw_bytes_per_s for row in rows if row.busbw_bytes_per_s is not None]
    return median(known) if known else None


def _lags(rows: Sequence[MatchRow]) -> list[Lag]:
    """By rank, of all that took part in a collective whose arrivals are known."""
    told = [row for row in rows if row.last_rank is not None]
    took_part = Counter(rank for row in told for rank in row.ranks)
    blame: defaultdict[int | None, list[int]] = defaultdict(list)
    for row in told:
        blame[row.last_rank].append(row.blame_ns or 0)
    return [
        Lag(rank, len(blame[rank]), len(blame[rank]) / count, _median(blame[rank]))
        for rank, count in sorted(took_part.items())
    ]


def _rank_digests(
    matches: Sequence[MatchRow], arrivals: dict[int, list[ArrivalRow]], steps: int
) -> tuple[RankDigest, ...]:
    by_rank: defaultdict[int, list[ArrivalRow]] = defaultdict(list)
    for row in (row for rows in arrivals.values() for row in rows):
        by_rank[row.rank].append(row)
    lags = {lag.rank: lag for lag in _lags(matches)}
    return tuple(
        _rank_digest(lags.get(rank, Lag(rank, 0, 0.0, None)), rows, steps) for rank, rows in sorted(by_rank.items())
    )


def _rank_digest(lag: Lag, rows: Sequence[ArrivalRow], steps: int) -> RankDigest:
    waits = [wait for wait in map(wait_of, rows) if wait is not None]
    free = any(row.wait_ns is None and row.free_wait_ns is not None for row in rows)
    return RankDigest(lag, len(rows), round(sum(waits) / max(steps, 1)) if waits else None, _wait_ratio(rows), free)


def _wait_ratio(rows: Iterable[ArrivalRow]) -> float | None:
    known = [row for row in rows if wait_of(row) is not None]
    waits = sum(wait_of(row) or 0 for row in known)
    whole = waits + sum(_transfer_of(row) or 0 for row in known)
    return waits / whole if whole else None


def _transfer_of(row: ArrivalRow) -> int | None:
    return row.free_transfer_ns if row.wait_ns is None else row.transfer_ns


def _median(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def _mean(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(fmean(known)) if known else None


# The critical path in short -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PathShare:
    """A part of the critical path: what one rank did, or where `rank` is None the transfers of one kind."""

    rank: int | None
    what: str  # a phase; of transfers, op
    bucket: BucketKey | None
    nbytes: int | None
    ns: int  # per step
    ratio: float


def path_shares(result: Result) -> list[PathShare]:
    """Of the typical steps, the largest first; where these are not on it, of the whole path. Ratios add up to 1."""
    steps = {row.step for row in measured_steps(result.steps)[0]}
    rows = [row for row in result.critical_path if row.step in steps]
    if not rows:
        rows = list(result.critical_path)
    parts: Counter[tuple[int | None, str, BucketKey | None, int | None]] = Counter()
    for row in rows:
        parts[_kind_of_piece(row, result)] += row.end_at_ns - row.begin_at_ns
    whole, count = sum(parts.values()), max(len({row.step for row in rows}), 1)
    found = [PathShare(*part, round(ns / count), ns / whole) for part, ns in parts.items()]
    return sorted(found, key=lambda one: -one.ns)


def _kind_of_piece(row: PathRow, result: Result) -> tuple[int | None, str, BucketKey | None, int | None]:
    if row.match is None:
        return row.rank, row.what, None, None
    match = result.matches[row.match]
    return None, match.op, match.bucket, match.nbytes


# Waiting and transfer, without clocks ---------------------------------------------------------------------------------


WAITING_MIN_RATIO: Final = 0.5
"""Of the communication. From this share on, ranks that come late matter more than what is sent."""
Calls = dict[tuple[int, int], int]
"""By rank and seq."""


@dataclass(frozen=True, slots=True)
class MatchedTime:
    """Of matched collectives whose executions tell when each rank came. Times are sums over them."""

    collectives: int
    steps: int  # that they ran in; 0 where they ran in none
    ran_ns: int  # mean over the ranks
    transfer_ns: int  # the shortest execution over the ranks
    typical: bool  # whether all of these steps are typical ones

    @property
    def waiting_ratio(self) -> float:
        return 1 - self.transfer_ns / self.ran_ns


LITTLE_RATIO: Final = 0.1
"""Of the communication: waiting for less of it is nothing to look at first."""


def waits_little(result: Result) -> bool:
    """Whether it is known that ranks hardly wait for each other inside their collectives."""
    matched = matched_time(result)
    return matched is not None and matched.waiting_ratio < LITTLE_RATIO


def matched_time(result: Result) -> MatchedTime | None:
    """The clock-free estimate: the rank that came last waited for nobody, so its execution is the transfer. None where
    no execution tells when its rank came: a begin that follows from the launch tells nothing of waiting. Of the
    collectives of typical steps; where these have none, of those in any step; else of all."""
    executions: Calls = defaultdict(int)
    step_of: dict[tuple[int, int], int] = {}
    for row in result.collectives:
        if row.tells_arrival:
            executions[row.rank, row.seq] += row.comm_ns or 0
            if row.step is not None:
                step_of[row.rank, row.seq] = row.step
    known = [
        match
        for match in result.matches
        if family_of(match.op).ends_together and all(call in executions for call in _calls_of(match))
    ]
    inside = [match for match in known if any(call in step_of for call in _calls_of(match))]
    typical = {row.step for row in measured_steps(result.steps)[0]}
    middle = [match for match in inside if match.step in typical]
    inside = middle or inside
    told = inside or known
    ran_ns = round(sum(executions[call] / len(match.ranks) for match in told for call in _calls_of(match)))
    if not ran_ns:
        return None
    steps = len({step_of[call] for match in inside for call in _calls_of(match) if call in step_of})
    return MatchedTime(len(told), steps, ran_ns, sum(match.transfer_ns for match in told), bool(middle))


def _calls_of(match: MatchRow) -> list[tuple[int, int]]:
    return list(zip(match.ranks, match.seqs, strict=True))
