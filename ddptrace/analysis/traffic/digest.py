"""Sums up traffic for a reader: what goes over the wire in every step, what went once, and what each unit sends.

Figures are means over the steps counted, which are all whole steps but the first, where the program builds and warms
up, and a last one that was cut off. Bytes do not depend on how long a step took, so that there is no reason to leave
out others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcDigest, rpc_traffic
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.analysis.traffic.gradients import GradientDigest, gradients
from ddptrace.analysis.traffic.peers import LinkDigest, MessageDigest, RootDigest, links, messages, roots
from ddptrace.analysis.traffic.rows import Kind, by_kind, kind_of
from ddptrace.analysis.units.digest import BESIDE
from ddptrace.findings import Finding
from ddptrace.ops import SENT
from ddptrace.schema import Origin

ONCE: Final = (Origin.CONSTRUCTION.word, Origin.REBUILD.word)
"""Collectives of these origins belong to no step in particular, whichever they ran in."""


@dataclass(frozen=True, slots=True)
class KindDigest:
    """Collectives of one kind: means over the rank-steps of the ranks that issue it, also those without; of what went
    once, over these ranks. Bytes are None where nothing tells them."""

    op: str  # operation
    group: str  # process group
    group_size: int | None  # ranks in the group
    origin: str | None  # who asked for them, a word of `schema.Origin`
    dtype: str  # of their tensors
    ranks: int  # ranks that issue it
    calls: float  # number of calls
    nbytes_in: int | None  # of tensors handed over
    nbytes_out: int | None  # of tensors filled
    nbytes_min: int | None  # least of one rank in one step, of the larger side
    nbytes_max: int | None  # most of one rank in one step, of the larger side
    sent_nbytes: int | None  # sent by one rank; computed, as in `traffic`
    all_sent_nbytes: int | None  # sent by all its ranks together


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """One rank, all kinds together: means over its steps. What is not known counts as 0."""

    rank: int  # global rank
    host: str  # its host
    nbytes_in: int  # of tensors handed over
    nbytes_out: int  # of tensors filled
    sent_nbytes: int  # sent; computed, as in `traffic`


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """Bytes of a run per step."""

    per: str  # "step" (and rank), or "rank" where no step was found: then all that the rank did
    steps: tuple[int, ...]  # ordinals of the steps that count
    rank_steps: int  # these steps, of all ranks together
    kinds: tuple[KindDigest, ...]  # by kind of collective, the most sent first
    once: tuple[KindDigest, ...]  # collectives that belong to no step, as of construction
    ranks: tuple[RankTraffic, ...]  # ranks with steps that count
    uncounted: tuple[int, ...]  # ranks that sent or received something, in none of the steps that count
    links: tuple[LinkDigest, ...]  # by process group
    messages: tuple[MessageDigest, ...]  # sends and receives by pair of ranks
    roots: tuple[RootDigest, ...]  # ops with a root, by root
    gradients: tuple[GradientDigest, ...]  # by reducer
    rpcs: tuple[RpcDigest, ...]  # remote calls by pair of workers
    findings: tuple[Finding, ...]  # those that touch the counts
    reduces_on_host: bool = False  # a reduce or reduce-scatter is not known to run on a device
    units: tuple[UnitTraffic, ...] = ()  # by unit that is no bucket, and role; the most sent first


def traffic_report(result: Result) -> TrafficReport:
    counted = steps_counted(result)
    steady, once = _apart(result.traffic, counted)
    steps_of = Counter(rank for rank, _ in counted)
    counts: Callable[[int], int] = (lambda rank: steps_of[rank]) if counted else (lambda rank: 1)
    return TrafficReport(
        per="step" if counted else "rank",
        steps=tuple(sorted({step for _, step in counted})),
        rank_steps=len(counted),
        kinds=_kinds(by_kind(steady), counts),
        once=_kinds(by_kind(once), lambda rank: 1),
        ranks=tuple(_ranks(result, steady, counts)),
        uncounted=_uncounted(result.traffic, counted),
        links=links(result.groups, steady, counts),
        messages=messages(steady, counts),
        roots=roots(steady, counts),
        gradients=gradients(row for row in result.gradient_traffic if (row.rank, row.step) in counted),
        units=_unit_traffic(result, counted, counts),
        rpcs=rpc_traffic(result.rpcs, counted),
        findings=tuple(finding for finding in result.findings if finding.kind.concerns_counts),
        reduces_on_host=any(not row.on_device and _reduces_to_some(row.op) for row in result.collectives),
    )


def _reduces_to_some(op: str) -> bool:
    """Not to every rank the whole."""
    return op == "reduce" or op.startswith("reduce_scatter")


def steps_counted(result: Result) -> frozenset[tuple[int, int]]:
    """(rank, step) of all steps but step 0, and but each rank's last where a backward ended it: such steps go on until
    the next begins, so that what comes after the last backward is missing there. Of a run that has no other, all."""
    steps = frozenset((row.rank, row.step) for row in result.steps)
    last = {row.rank: row for row in result.steps}
    cut_off = {(row.rank, row.step) for row in last.values() if row.ended_by == "backward"}
    return frozenset(one for one in steps - cut_off if one[1] > 0) or steps


def _uncounted(rows: Iterable[TrafficRow], counted: frozenset[tuple[int, int]]) -> tuple[int, ...]:
    """Not those that waited in a barrier alone: nothing of them is missing."""
    known = {rank for rank, _ in counted}
    active = {row.rank for row in rows if row.nbytes_in != 0 or row.nbytes_out != 0}
    return tuple(sorted(active - known)) if known else ()


def _apart(
    rows: Iterable[TrafficRow], counted: frozenset[tuple[int, int]]
) -> tuple[list[TrafficRow], list[TrafficRow]]:
    """What goes over in every step, and what went once: by origin, and whatever never came in the steps counted."""
    steady: list[TrafficRow] = []
    rest: list[TrafficRow] = []
    for row in rows:
        is_counted = not counted or (row.step is not None and (row.rank, row.step) in counted)
        (steady if is_counted and row.origin not in ONCE else rest).append(row)
    again = {kind_of(row) for row in steady}
    return steady, [row for row in rest if kind_of(row) not in again]


def _kinds(rows: Iterable[TrafficRow], counts: Callable[[int], int]) -> tuple[KindDigest, ...]:
    alike: defaultdict[Kind, list[TrafficRow]] = defaultdict(list)
    for row in rows:
        alike[kind_of(row)].append(row)
    found = [_digest(kind, mine, counts) for kind, mine in alike.items()]
    return tuple(sorted(found, key=lambda one: (-(one.all_sent_nbytes or 0), -(one.nbytes_max or 0), one.op)))


def _digest(kind: Kind, rows: Sequence[TrafficRow], counts: Callable[[int], int]) -> KindDigest:
    ranks = {row.rank for row in rows}
    count = sum(map(counts, ranks))
    whole = [None if row.nbytes_in is None else max(row.nbytes_in, row.nbytes_out or 0) for row in rows]
    sizes = [nbytes for nbytes in whole if nbytes is not None]
    if sizes and len(rows) < count:  # there were steps without
        sizes.append(0)
    sent = [row.sent_nbytes for row in rows]
    mean = _mean(sent, count)
    return KindDigest(
        *kind,
        len(ranks),
        len(rows) and sum(row.calls for row in rows) / count,
        _mean([row.nbytes_in for row in rows], count),
        _mean([row.nbytes_out for row in rows], count),
        min(sizes, default=None),
        max(sizes, default=None),
        sent_nbytes=mean,
        all_sent_nbytes=None if mean is None else _together(rows, counts),
    )


def _together(rows: Iterable[TrafficRow], counts: Callable[[int], int]) -> int:
    """Of all ranks in one step: the sum of their means."""
    return round(sum((row.sent_nbytes or 0) / counts(row.rank) for row in rows))


def _mean(values: Sequence[float | None], count: int) -> int | None:
    """None where nothing tells one of them."""
    known = [value for value in values if value is not None]
    return round(sum(known) / count) if len(known) == len(values) else None


def _ranks(result: Result, rows: Iterable[TrafficRow], counts: Callable[[int], int]) -> Iterable[RankTraffic]:
    by_rank: defaultdict[int, list[TrafficRow]] = defaultdict(list)
    for row in rows:
        by_rank[row.rank].append(row)
    for rank in result.ranks:
        mine, count = by_rank[rank.rank], counts(rank.rank)
        if not count:
            continue
        sums = (sum(getattr(row, name) or 0 for row in mine) for name in ("nbytes_in", "nbytes_out", "sent_nbytes"))
        yield RankTraffic(rank.rank, rank.host, *(round(nbytes / count) for nbytes in sums))


# By unit --------------------------------------------------------------------------------------------------------------


UnitKey = tuple[str, str, str, str]
"""Kind, name, role and dimension."""


@dataclass(frozen=True, slots=True)
class UnitTraffic:
    """What one unit does in one role: means over the rank-steps of the ranks that have it."""

    kind: str  # what the unit groups, as in `units`
    name: str  # of the unit
    role: str  # what it does for the unit, as in `units`
    dimension: str  # of parallelism
    calls: float  # number of calls
    nbytes: int | None  # of the larger side of their tensors; None where nothing tells
    sent_nbytes: int | None  # sent by one rank; computed, as in `traffic`


def _unit_traffic(
    result: Result, counted: frozenset[tuple[int, int]], counts: Callable[[int], int]
) -> tuple[UnitTraffic, ...]:
    """Sum up what units send, the most sent first. `counted`: (rank, step) of the steps that count, empty for all."""
    of_seq = {
        (row.rank, seq): (row.kind, row.name, row.role, row.dimension)
        for row in result.units
        if row.kind not in BESIDE and (not counted or (row.rank, row.step) in counted)
        for seq in row.seqs
    }
    alike: defaultdict[UnitKey, list[CollectiveRow]] = defaultdict(list)
    for row in result.collectives:
        key = of_seq.get((row.rank, row.seq))
        if key is not None and row.part == 0:
            alike[key].append(row)
    found = [_of_unit(key, rows, counts) for key, rows in alike.items()]
    return tuple(sorted(found, key=lambda one: (-(one.sent_nbytes or 0), -(one.nbytes or 0), one.name)))


def _of_unit(key: UnitKey, rows: list[CollectiveRow], counts: Callable[[int], int]) -> UnitTraffic:
    count = sum(map(counts, {row.rank for row in rows}))
    nbytes, sent = ([of(row) for row in rows] for of in (lambda row: row.nbytes, _sent))
    return UnitTraffic(*key, len(rows) / count, _mean(nbytes, count), _mean(sent, count))


def _sent(row: CollectiveRow) -> float | None:
    factor = SENT.get(row.op)
    if factor is None or not row.group_size or row.nbytes is None:
        return None
    return row.nbytes * factor(row.group_size)
