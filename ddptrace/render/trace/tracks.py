"""Which tracks a rank has in the trace, in what order, what stands on them, and which ranks share a stretch of time.

steps           | step 12 · 121 ms                                    |
phases          | forward      | backward               | optimizer   |
pipeline stage 0 | forward 0 |             | backward 0 |           what each stage of a pipeline computed
last arrivals              | last to bucket 0 |         all others had arrived
host waits                                          | waits |
compute         | ███ ██████ ██████ ████████ ████████       ████████  |
bucket gradients               | ready |q|──┐  | ready |queue|─┐         per bucket: first gradient → launch → exec
bucket communication                     ┌─▶| exec      |  exec     |    the bucket on the wire: waiting, transfer
remote calls and runs, other collectives, the backend's own ranges, the devices' streams, and what the host did around
the longest gaps in these
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from ddptrace.analysis.intervals import union
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import Activity, RankRow
from ddptrace.analysis.tables.parallelism import PipelineRow
from ddptrace.analysis.tables.ranks import ArrivalRow, MatchRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.render.device.device_tracks import device_tracks, gap_tracks
from ddptrace.render.pipeline import stage_tracks
from ddptrace.render.ranks.rank_tracks import Last, MatchOnRank, begin_of, executed, last_slice, other_units
from ddptrace.render.rpc import Numbered, rpc_tracks
from ddptrace.render.trace.slices import (
    DeviceTrack,
    Slice,
    SpanTrack,
    Track,
    Unit,
    bucket_slice,
    exec_slice,
    lay_out,
    life_unit,
    phase_slice,
    step_slice,
    wait_slice,
)
from ddptrace.units import long_time

AnyTrack = Track | SpanTrack | DeviceTrack
Span = tuple[int, int]


@dataclass(slots=True)
class RankRows:
    """One rank's share of a result."""

    rank: int
    row: RankRow | None = None
    activity: Activity | None = None
    steps: list[StepRow] = field(default_factory=list)
    phases: list[PhaseRow] = field(default_factory=list)
    buckets: list[BucketRow] = field(default_factory=list)
    collectives: list[CollectiveRow] = field(default_factory=list)
    pipeline: list[PipelineRow] = field(default_factory=list)
    rpcs: list[Numbered] = field(default_factory=list)  # that it made
    runs: list[Numbered] = field(default_factory=list)  # that it served
    met: dict[int, MatchOnRank] = field(default_factory=dict)  # by seq, collectives that it met the others in
    last: list[Last] = field(default_factory=list)  # that it came last to


def by_rank(result: Result) -> list[RankRows]:
    """The rows of each rank that the result names anywhere, in the order of the ranks."""
    found: defaultdict[int, RankRows] = defaultdict(lambda: RankRows(-1))
    for row in result.ranks:
        found[row.rank].row = row
    for activity in result.activity:
        found[activity.rank].activity = activity
    for table in ("steps", "phases", "buckets", "collectives", "pipeline"):
        for entry in getattr(result, table):
            getattr(found[entry.rank], table).append(entry)
    for arrow, rpc in enumerate(result.rpcs, start=1):
        if rpc.rank is not None:
            found[rpc.rank].rpcs.append(Numbered(arrow, rpc))
        if rpc.callee_rank is not None:
            found[rpc.callee_rank].runs.append(Numbered(arrow, rpc))
    for rank, rows in found.items():
        rows.rank = rank
    return [found[rank] for rank in sorted(found)]


def rank_tracks(rows: RankRows, flows: Iterator[int], several_reducers: bool) -> Iterator[AnyTrack]:
    """`flows` gives each arrow from a bucket's launch to its communication a number of its own."""
    yield from lay_out("steps", [(step_slice(step),) for step in rows.steps])
    yield from lay_out("phases", [(phase_slice(phase),) for phase in rows.phases])
    yield from stage_tracks(rows.pipeline)
    yield from lay_out("last arrivals", [(last_slice(last, several_reducers),) for last in rows.last])
    yield from lay_out("host waits", [(wait_slice(*wait, several_reducers),) for wait in waits(rows)])
    yield from compute_tracks(rows.activity)
    arrows = [0 if row.exec_start_at_ns is None else next(flows) for row in rows.buckets]
    shown = [(row, bucket_slice(row, several_reducers, arrow)) for row, arrow in zip(rows.buckets, arrows, strict=True)]
    yield from lay_out("bucket gradients", [life_unit(*bucket) for bucket in shown])
    ran = [bucket_unit(*bucket, rows.met) for bucket in shown if bucket[1].flow]
    yield from lay_out("bucket communication", ran)
    yield from rpc_tracks(rows.rpcs, rows.runs)
    others = [row for row in rows.collectives if row.bucket is None]
    yield from lay_out("other collectives", other_units(others, rows.met))
    yield from backend_tracks(rows.activity)
    yield from device_tracks(rows.activity.device if rows.activity else (), flows)
    yield from gap_tracks(rows.activity.idle if rows.activity else ())


def bucket_unit(row: BucketRow, bucket: Slice, met: dict[int, MatchOnRank]) -> Unit:
    """`met`: by seq."""
    return executed(exec_slice(row, bucket), [met[seq] for seq in row.seqs if seq in met])


def compute_tracks(activity: Activity | None) -> Iterator[SpanTrack]:
    """There can be a million of these, and a union's intervals are apart already: they need no lanes and no slices."""
    looks = Slice("compute", "compute", 0, 0, colour="thread_state_running")
    if activity is not None and len(activity.compute):
        yield SpanTrack("compute", looks, union(activity.compute))


def waits(rows: RankRows) -> Iterator[tuple[BucketRow | CollectiveRow, int, int]]:
    """Where the host was blocked. The tables hold lengths: each wait is drawn to end when its collective was over."""
    others = (row for row in rows.collectives if row.bucket is None)
    both: Iterator[BucketRow | CollectiveRow] = itertools.chain(rows.buckets, others)
    for row in both:
        end = row.done_at_ns if row.done_at_ns is not None else row.exec_end_at_ns
        if row.wait_ns and end is not None:
            yield row, end - row.wait_ns, end


def backend_tracks(activity: Activity | None) -> Iterator[Track]:
    """The backend's ranges by lane. Those on a device's stream are drawn there."""
    lanes: defaultdict[str, list[Unit]] = defaultdict(list)
    streams = {stream for work in activity.device for stream in work.streams} if activity else set()
    for lane, name, begin, end, seq in () if activity is None else activity.backend:
        if lane in streams:
            continue
        lanes[lane].append((Slice(name, "backend", begin, end, f'{{"seq":{seq}}}', "rail_response"),))
    for lane in sorted(lanes):
        yield from lay_out(f"backend: {lane}", lanes[lane])


# Arrows from the last rank to arrive to the begin of the others' transfer ---------------------------------------------


def add_matches(result: Result, ranks: Sequence[RankRows], flows: Iterator[int]) -> None:
    """Give each rank what it needs to draw of the collectives that it met the others in. `flows` gives each arrow a
    number of its own."""
    known = {rows.rank: (rows, executions(rows)) for rows in ranks}
    for number, arrivals in itertools.groupby(result.arrivals, key=attrgetter("match")):
        match, arrows = result.matches[number], []
        for row in arrivals:
            rows, spans = known[row.rank]
            met = match_on_rank(row, match, spans.get(row.seq), flows)
            if met is not None:
                rows.met[row.seq] = met
                arrows += [met.arrow] if met.arrow else []
        if arrows and match.last_rank is not None:
            known[match.last_rank][0].last.append(Last(match, arrows[0], len(arrows)))


def executions(rows: RankRows) -> dict[int, Span]:
    """Begin and end by seq, of those that are drawn: one that carried a bucket is drawn as that."""
    carriers = {seq for row in rows.buckets if row.exec_start_at_ns is not None for seq in row.seqs}
    found: dict[int, Span] = {}
    for row in rows.collectives:
        is_drawn = row.bucket is None or row.seq in carriers
        if is_drawn and row.exec_start_at_ns is not None and row.exec_end_at_ns is not None:
            begin, _ = found.get(row.seq, (row.exec_start_at_ns, 0))
            found[row.seq] = begin, row.exec_end_at_ns
    return found


def match_on_rank(row: ArrivalRow, match: MatchRow, span: Span | None, flows: Iterator[int]) -> MatchOnRank | None:
    """None where nothing tells when this rank's execution was, or what of it was waiting.

    An arrow needs a transfer to end at: where a peer seems to be over before the last rank came, clocks are wrong, and
    no arrow goes back in time.
    """
    wait_ns = row.free_wait_ns if row.wait_ns is None else row.wait_ns
    if span is None or wait_ns is None:
        return None
    begin, end = span
    turn = min(begin + wait_ns, end)
    waited = row.wait_ns is not None and match.last_rank not in (None, row.rank)
    arrow = next(flows) if waited and row.transfer_ns and turn < end else 0
    return MatchOnRank(row, match, begin, turn, end, arrow)


# Which ranks share a stretch of time ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Island:
    """Ranks whose records hang together in time, and where they begin and end."""

    ranks: tuple[int, ...]
    begin_at_ns: int
    end_at_ns: int


def islands(ranks: Sequence[RankRows]) -> list[Island]:
    """In time order; a rank of which no instant is known is on none."""
    spans = sorted((min(instants), max(instants), rows.rank) for rows in ranks if (instants := list(_instants(rows))))
    found: list[Island] = []
    for begin, end, rank in spans:
        if found and begin <= found[-1].end_at_ns:
            last = found.pop()
            found.append(Island((*last.ranks, rank), last.begin_at_ns, max(last.end_at_ns, end)))
        else:
            found.append(Island((rank,), begin, end))
    return found


def apart_words(found: Sequence[Island]) -> str:
    """A sentence where not all ranks share a stretch of time, else nothing."""
    if len(found) < 2:
        return ""
    return (
        f"The ranks lie in {len(found)} stretches of time that do not overlap, over"
        f" {long_time(found[-1].end_at_ns - found[0].begin_at_ns)}: each stretch is drawn from its own begin, and"
        " instants of one say nothing of another."
    )


def _instants(rows: RankRows) -> Iterator[int]:
    """Instants that are drawn, the first and the last among them."""
    buckets = (
        (row.launch_at_ns, row.first_ready_at_ns, row.ready_at_ns, *_instants_of_run(row)) for row in rows.buckets
    )
    collectives = ((row.launch_at_ns, *_instants_of_run(row)) for row in rows.collectives)
    yield from (at for at in itertools.chain(*buckets, *collectives) if at is not None)
    stretches: list[StepRow | PhaseRow] = [*rows.steps, *rows.phases]
    yield from (at for row in stretches for at in (row.begin_at_ns, row.end_at_ns))
    yield from (begin for _, begin, _ in waits(rows))
    yield from map(begin_of, rows.last)
    calls = ((rpc.launch_at_ns, rpc.issued_at_ns, rpc.done_at_ns) for _, rpc in rows.rpcs)
    runs = ((rpc.run_start_at_ns, rpc.run_end_at_ns) for _, rpc in rows.runs)
    yield from (at for at in itertools.chain(*calls, *runs) if at is not None)
    if rows.activity is not None:
        yield from _instants_of_activity(rows.activity)


def _instants_of_run(row: BucketRow | CollectiveRow) -> tuple[int | None, int | None, int | None]:
    return row.exec_start_at_ns, row.exec_end_at_ns, row.done_at_ns


def _instants_of_activity(activity: Activity) -> Iterator[int]:
    """The ends of each list of intervals, which are in order of their begins."""
    yield from (at for _, _, *span, _ in activity.backend for at in span)
    columns = [activity.compute[:1, 0], activity.compute[-1:, 1]]
    for work in activity.device:
        columns += [work.begin_at_ns[:1], work.end_at_ns.max(keepdims=True)]
        columns.append(np.sort(work.launch_begin_at_ns[work.launched])[:1])
    for window in activity.idle:
        columns += [window.gaps[:1, 0], window.gaps[-1:, 1]]
        if window.around is not None and len(window.around.begin_at_ns):
            columns += [window.around.begin_at_ns[:1], window.around.end_at_ns.max(keepdims=True)]
    yield from np.concatenate(columns).tolist()
