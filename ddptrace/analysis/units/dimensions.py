"""Tells which kinds of parallelism a run shows, what each costs, and how much of it is waiting.

A kind of parallelism is told by who wanted the collectives. Only what is sure: a kind that nothing shows is not named,
and a run of which no kind is known has no row.

The exposed time of a dimension is waiting for ranks that come late, and transfer:

exposed, charged to it   ├─────────────────────┤
rank 0   gather      [===┼══════════════┼======]
rank 1   launch                         ▲        the last one has come
                         ├─ peer_wait ──┼ transfer ┤
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from ddptrace.analysis.clocks.aligned import UNKNOWN as APART
from ddptrace.analysis.clocks.aligned import Uncertainty
from ddptrace.analysis.collectives.execution import paying_from
from ddptrace.analysis.intervals import Ints, Measure, subtract
from ddptrace.analysis.pipeline.turns import Blocked
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.run_view import RunView
from ddptrace.analysis.steps.breakdown import unclaimed_ns
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.parallelism import DimensionRow, Kind, MessageRow, ParallelismRow
from ddptrace.analysis.tables.ranks import ArrivalRow
from ddptrace.analysis.units.members import PP, UNKNOWN, Place
from ddptrace.load.tables import Identity
from ddptrace.ops import family_of
from ddptrace.schema import Evidence, Origin


@dataclass(slots=True)
class _Sum:
    seqs: set[int] = field(default_factory=set)
    nbytes: int | None = 0
    comm_ns: int = 0
    charged_ns: int = 0


def dimension_rows(view: RankView) -> list[DimensionRow]:
    """List the dimensions of each step along which collectives ran that are known, in time order. Those of a step add
    up to its exposed communication: kernels of no recorded call are in a row of the dimension "unknown"."""
    return sorted(chain(_known_dimensions(view), _unknown_dimension(view)), key=lambda row: row.step)


def _unknown_dimension(view: RankView) -> Iterator[DimensionRow]:
    begins, ends = view.windows.begins, view.windows.ends
    exposed_ns = Measure(subtract(view.unclaimed, view.compute)).within(begins, ends)
    for mark, ran, exposed in zip(view.rank.steps, unclaimed_ns(view).tolist(), exposed_ns.tolist(), strict=True):
        if ran:
            yield DimensionRow(view.rank.rank, mark.ordinal, UNKNOWN, "", None, None, ran, exposed)


def _known_dimensions(view: RankView) -> list[DimensionRow]:
    sums: defaultdict[int, defaultdict[Place, _Sum]] = defaultdict(lambda: defaultdict(_Sum))
    shares, previous = view.shares, -1
    for at, step, begin, end, charged in zip(
        shares.comm.tolist(),
        shares.step.tolist(),
        shares.begins.tolist(),
        shares.ends.tolist(),
        shares.charged.tolist(),
        strict=True,
    ):
        comm, is_first = view.comms[at], at != previous
        previous = at
        if step < 0:
            continue
        one = sums[step][view.members[at].place]
        one.seqs.add(comm.seq)
        one.comm_ns += end - begin
        one.charged_ns += charged
        if is_first:
            nbytes = None if comm.call is None else max(comm.call.nbytes_in, comm.call.nbytes_out)
            one.nbytes = None if one.nbytes is None or nbytes is None else one.nbytes + nbytes
    return [
        DimensionRow(
            view.rank.rank,
            view.rank.steps[step].ordinal,
            place.dimension,
            place.mesh,
            len(one.seqs),
            one.nbytes,
            one.comm_ns,
            one.charged_ns if view.knows_compute(step) else None,
        )
        for step, places in sorted(sums.items())
        for place, one in sorted(places.items(), key=lambda item: (item[0].dimension, item[0].mesh))
    ]


# Which kinds of parallelism a run shows -------------------------------------------------------------------------------


KIND_BY_ORIGIN: Final = {
    Origin.FSDP.word: Kind.FSDP,
    Origin.ZERO.word: Kind.ZERO,
    Origin.TENSOR_PARALLEL.word: Kind.TENSOR,
    Origin.PIPELINE.word: Kind.PIPELINE,
    Origin.MOE.word: Kind.EXPERT,
    Origin.EMBEDDINGS.word: Kind.EMBEDDINGS,
}
SHARES_UPDATES: Final = ("all_gather", "reduce_scatter", "broadcast")
"""Ops with which a sharded optimizer gets its part of the gradients, or spreads its part of the parameters."""


def parallelism_rows(ranks: Sequence[RankTables]) -> list[ParallelismRow]:
    """In the order of `Kind`."""
    by_kind: defaultdict[Kind, list[CollectiveRow]] = defaultdict(list)
    rows = [row for rank in ranks for row in rank.collectives]
    of_fsdp = {row.group for row in rows if row.origin == Origin.FSDP.word}
    for row in rows:
        kind = _kind(row, of_fsdp)
        if kind is not None:
            by_kind[kind].append(row)
    trains = Kind.DDP in by_kind or not by_kind  # a reducer that sends nothing beside others is not trained
    told = {Kind.DDP: _reducers(ranks) if trains else "", Kind.INFERENCE: _named(rank.facts.serves for rank in ranks)}
    return [
        _parallelism_row(kind, told.get(kind) or _origins(by_kind[kind]), by_kind[kind])
        for kind in Kind
        if told.get(kind) or by_kind.get(kind)
    ]


def _kind(row: CollectiveRow, of_fsdp: set[str]) -> Kind | None:
    """What a collective shows. Operators on sharded tensors also serve FSDP, in its own group."""
    if row.bucket is not None:
        return Kind.DDP
    if row.origin == Origin.DTENSOR.word:
        return None if row.group in of_fsdp else Kind.TENSOR
    if row.origin == Origin.OPTIMIZER.word and row.op.startswith(SHARES_UPDATES):
        return Kind.ZERO
    if row.origin == Origin.GRADIENTS.word and row.identity is not Identity.RECORDED:
        return Kind.ZERO if row.op.startswith("reduce_scatter") else Kind.DATA
    return KIND_BY_ORIGIN.get(row.origin or "")


def _reducers(ranks: Iterable[RankTables]) -> str:
    return _named(reducer.kind for rank in ranks for reducer in rank.facts.reducers)


def _named(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, names)))


def _origins(rows: Iterable[CollectiveRow]) -> str:
    """As in "reduce_scatter_tensor (gradients), all_gather_into_tensor (optimizer)"."""
    counts = Counter((row.op.rstrip("_"), row.origin) for row in rows)
    return ", ".join(f"{op} ({origin})" for (op, origin), _ in counts.most_common())


def _parallelism_row(kind: Kind, told_by: str, rows: Sequence[CollectiveRow]) -> ParallelismRow:
    sizes = Counter(row.group_size for row in rows if row.group_size is not None)
    exposed = [row.exposed_charged_ns for row in rows if row.exposed_charged_ns is not None]
    return ParallelismRow(
        kind.value,
        told_by,
        next(iter(sizes.most_common(1)), (None, 0))[0],
        len({(row.rank, row.seq) for row in rows}),
        sum(exposed) if exposed else None,
    )


# How much of it is waiting --------------------------------------------------------------------------------------------


DimensionKey = tuple[int | None, str, str]
"""Step, dimension and mesh."""
NEVER: Final = -1
"""Nothing tells when the last rank came."""
EXECUTION: Final = ("exec_start_at_ns", "exec_end_at_ns")


@dataclass(slots=True)
class _Parts:
    wait_ns: int = 0
    unmatched_ns: int = 0


def split_dimensions(run: RunView) -> Iterator[DimensionRow]:
    """Yield the dimensions of all ranks, each with the parts of its exposed time."""
    arrivals, launches = _by_rank(run.arrivals), _last_launches(run)
    messages = _by_rank(run.pipelines.messages)
    bubbles: defaultdict[tuple[int, int | None], int] = defaultdict(int)
    for row in run.pipelines.bubbles:
        bubbles[row.rank, row.step] += row.bubble_ns
    for rank in run.ranks:
        number = rank.facts.rank
        parts = _parts(rank, arrivals.get(number, ()), messages.get(number, ()), launches)
        for one in rank.rows["dimensions"]:
            bubble = bubbles[number, one.step] if one.dimension == PP else 0
            nothing = _Parts(unmatched_ns=one.exposed_charged_ns or 0 if one.dimension == UNKNOWN else 0)
            yield _split(one, parts.get((one.step, one.dimension, one.mesh), nothing), bubble)


def _by_rank(rows: Iterable[ArrivalRow] | Iterable[MessageRow]) -> Mapping[int, list[Any]]:
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.rank].append(row)
    return found


def _split(row: DimensionRow, parts: _Parts, bubble_ns: int) -> DimensionRow:
    if row.exposed_charged_ns is None:
        return row
    return replace(
        row,
        bubble_ns=min(bubble_ns, parts.wait_ns),
        peer_wait_ns=parts.wait_ns - min(bubble_ns, parts.wait_ns),
        transfer_ns=row.exposed_charged_ns - parts.wait_ns - parts.unmatched_ns,
        unmatched_ns=parts.unmatched_ns,
    )


def _parts(
    rank: RankTables,
    arrivals: Sequence[ArrivalRow],
    messages: Sequence[MessageRow],
    launches: Mapping[tuple[int, int], int],
) -> Mapping[DimensionKey, _Parts]:
    rows = [row for row in rank.collectives if row.exposed_charged_ns]
    begins, ends = (np.array([getattr(row, name) or 0 for row in rows], np.int64) for name in EXECUTION)
    paying = np.minimum(np.maximum(begins, _paying(rank.collectives, rows)), ends)
    came = _last_come(rows, arrivals, launches)
    cut = np.minimum(np.maximum(paying, came), ends)
    waits = cut - paying - Measure(rank.activity.compute).within(paying, cut)
    blocked = Blocked.of(messages).peer.within(paying, ends)
    met = {row.seq for row in messages if row.other_seq is not None}
    places = _places(rank)
    found: defaultdict[DimensionKey, _Parts] = defaultdict(_Parts)
    columns = zip(rows, came.tolist(), waits.tolist(), blocked.tolist(), strict=True)
    for row, last, wait, peer in columns:
        charged, one = row.exposed_charged_ns or 0, found[row.step, *places[row.seq]]
        if row.seq in met:
            one.wait_ns += min(peer, charged)
        elif last == NEVER:
            one.unmatched_ns += charged
        else:
            one.wait_ns += min(wait, charged)
    return found


def _paying(every: Sequence[CollectiveRow], rows: Sequence[CollectiveRow]) -> Ints:
    """Return from when on each of the rows' collectives pays for what is exposed, as charges count it."""
    spans: dict[int, tuple[int, int]] = {}
    for row in every:
        if row.exec_start_at_ns is not None and row.exec_end_at_ns is not None:
            begin, _ = spans.get(row.seq, (row.exec_start_at_ns, 0))
            spans[row.seq] = begin, row.exec_end_at_ns
    begins, ends = (np.array([span[side] for span in spans.values()], np.int64) for side in (0, 1))
    paying = dict(zip(spans, paying_from(begins, ends, np.array(list(spans), np.int64)).tolist(), strict=True))
    return np.array([paying[row.seq] for row in rows], np.int64)


def _last_come(
    rows: Sequence[CollectiveRow], arrivals: Sequence[ArrivalRow], launches: Mapping[tuple[int, int], int]
) -> Ints:
    """Return when the last rank came to the collective of each row: by arrivals on one clock, else by the shortest
    execution over the ranks, else by launches; `NEVER` where none of them tells."""
    told = {row.seq: row for row in arrivals}
    firsts = {row.seq: row.exec_start_at_ns for row in reversed(rows) if row.part == 0}
    by_launch = (launches.get((row.rank, row.seq), NEVER) for row in rows)
    found = (_came(row, told.get(row.seq), firsts.get(row.seq)) for row in rows)
    return np.array([late if at == NEVER else at for at, late in zip(found, by_launch, strict=True)], np.int64)


def _came(row: CollectiveRow, arrival: ArrivalRow | None, begin_at_ns: int | None) -> int:
    if arrival is None or not family_of(row.op).ends_together:
        return NEVER
    if arrival.waited_ns is not None:
        return arrival.arrival_at_ns + arrival.waited_ns
    if arrival.free_wait_ns is not None and begin_at_ns is not None:
        return begin_at_ns + arrival.free_wait_ns
    return NEVER


def _places(rank: RankTables) -> Mapping[int, tuple[str, str]]:
    """By seq of a communication."""
    return {seq: (row.dimension, row.mesh) for row in rank.rows["units"] for seq in (row.seqs or (row.seq,))}


# Collectives of which only the host's wait is known -------------------------------------------------------------------


def _last_launches(run: RunView) -> Mapping[tuple[int, int], int]:
    """Return, by rank and seq, when the last rank launched a collective that ran on the hosts and of which nothing
    tells when it began there. Those of groups whose clocks cannot be compared are left out."""
    together: defaultdict[tuple[str, tuple[int, ...], int], list[CollectiveRow]] = defaultdict(list)
    for rank in run.ranks:
        members = dict(rank.facts.groups)
        for row in rank.collectives:
            if _is_told_by_launch(row) and members.get(row.group):
                together[row.group, members[row.group], row.turn or 0].append(row)
    uncertainty = Uncertainty.of(run.ranks, run.clocks)
    found: dict[tuple[int, int], int] = {}
    for (_, ranks, _), rows in together.items():
        last = max(row.launch_at_ns for row in rows)
        is_whole = len(rows) == len(ranks) and len({row.op for row in rows}) == 1
        if is_whole and uncertainty.between(ranks, np.array([last]))[0] != APART:
            found |= {(row.rank, row.seq): last for row in rows}
    return found


def _is_told_by_launch(row: CollectiveRow) -> bool:
    is_whole = row.part == 0 and row.turn is not None and family_of(row.op).ends_together
    return is_whole and row.evidence is Evidence.HOST and not row.on_device
