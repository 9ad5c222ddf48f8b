"""Makes one row per collective and step, and tells what DDP's broadcasts of buffers cost each step.

Bandwidths are defined as in nccl-tests, so that the numbers compare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddptrace.analysis.collectives.execution import Communication, is_inferred
from ddptrace.analysis.intervals import intersect, pairs, total, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.units.members import Member
from ddptrace.load.tables import Call, Identity, Intervals, UnitKind, Window
from ddptrace.ops import FACTORS, Whole, family_of
from ddptrace.rows import row
from ddptrace.schema import RANGE_PREFIX, Origin

HOOK_OP = "comm_hook"
"""A hook that communicated by other means than a collective that was seen."""
PROGRAM, HOOK = Origin.PROGRAM.word, Origin.HOOK.word
BucketKey = tuple[int, int, int]
Shared = tuple[int | None, int | None, int | None]  # hidden, exposed, charged
What = tuple[str, str, int, int | None, str]


@row
@dataclass(frozen=True, slots=True)
class Bandwidth:
    """In bytes per second; None where it is not known."""

    algbw: float | None = None
    busbw: float | None = None


def bandwidth(call: Call, group_size: int | None, exec_ns: int) -> Bandwidth:
    """Compute both bandwidths over `exec_ns`, the whole execution. Unknown for an op that ddptrace does not know."""
    factor, nbytes = FACTORS.get(call.op), moved_nbytes(call, group_size)
    if factor is None or not nbytes or exec_ns <= 0:
        return Bandwidth()
    algbw = nbytes * 1e9 / exec_ns
    return Bandwidth(algbw, algbw * factor(group_size) if group_size else None)


def moved_nbytes(call: Call, group_size: int | None) -> int | None:
    """The whole of what is gathered or scattered, also on a rank that holds only its part; None where not known."""
    whole, part = call.nbytes_in, call.nbytes_out
    match family_of(call.op).whole:
        case Whole.EITHER:
            return max(whole, part)
        case Whole.OUTPUT:
            whole, part = part, whole
    return whole or (part * group_size if group_size else None)


def collective_rows(view: RankView) -> list[CollectiveRow]:
    """Rows in launch order. What belongs to the call as a whole (wait, queue, bandwidth) is told in its part 0 only."""
    known = _Known(
        buckets={
            comm.seq: (occurrence.reducer, occurrence.layout, occurrence.index)
            for occurrence in view.found
            for comm in occurrence.comms
        },
        sizes={group.name: len(group.ranks) for group in view.rank.groups if group.ranks},
    )
    rows = [*_executed(view, known), *_unknown(view, known)]
    return sorted(rows, key=lambda row: (row.launch_at_ns, row.seq, row.part))


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the rank's collectives beside themselves."""

    buckets: dict[int, BucketKey]  # by seq
    sizes: dict[str, int]  # of groups

    def size(self, comm: Communication) -> int | None:
        if comm.call is None:
            return None
        return comm.call.group_size if comm.call.group_size is not None else self.sizes.get(comm.call.group)

    def bandwidth(self, comm: Communication) -> Bandwidth:
        if comm.call is None or comm.begin_at_ns is None or comm.end_at_ns is None:
            return Bandwidth()
        return bandwidth(comm.call, self.size(comm), comm.end_at_ns - comm.begin_at_ns)


def _executed(view: RankView, known: _Known) -> Iterator[CollectiveRow]:
    shares = view.shares
    columns = (shares.comm, shares.step, shares.begins, shares.ends, shares.hidden, shares.charged)
    previous, part = -1, 0
    for at, step, begin, end, hidden, charged in zip(*(column.tolist() for column in columns), strict=True):
        comm = view.comms[at]
        part = part + 1 if at == previous else 0
        previous = at
        speed = Bandwidth() if part else known.bandwidth(comm)
        is_known = view.knows_compute(step, comm.evidence)
        shared: Shared = (hidden, end - begin - hidden, charged) if is_known else (None, None, None)
        waited, queued = (None, None) if part else (view.wait_ns.get(comm.seq), begin - comm.launch_at_ns)
        yield CollectiveRow(
            view.rank.rank,
            view.ordinal(step),
            comm.seq,
            part,
            *_what(comm),
            comm.launch_at_ns,
            begin,
            end,
            comm.done_at_ns,
            waited,
            queued,
            end - begin,
            *shared,
            comm.evidence,
            known.buckets.get(comm.seq),
            known.size(comm),
            _lane(comm),
            speed.algbw,
            speed.busbw,
            _identity(comm),
            exec_start_inferred=is_inferred(comm),
            **_source(comm, known, view.members[at]),
        )


def _unknown(view: RankView, known: _Known) -> Iterator[CollectiveRow]:
    """Those of which nothing tells when they ran, in the step that launched them."""
    unknown = [at for at, comm in enumerate(view.comms) if comm.end_at_ns is None]
    steps = view.steps.at(np.array([view.comms[at].launch_at_ns for at in unknown], np.int64))
    for at, step in zip(unknown, steps.tolist(), strict=True):
        comm = view.comms[at]
        nothing = (None,) * 2, (None,) * 7
        yield CollectiveRow(
            view.rank.rank,
            view.ordinal(step),
            comm.seq,
            0,
            *_what(comm),
            comm.launch_at_ns,
            *nothing[0],
            comm.done_at_ns,
            *nothing[1],
            known.buckets.get(comm.seq),
            known.size(comm),
            identity=_identity(comm),
            **_source(comm, known, view.members[at]),
        )


def _what(comm: Communication) -> What:
    """Op, group, ordinal, bytes (of the larger side: the whole of what is gathered or scattered), dtype."""
    if comm.call is not None:
        call = comm.call
        nbytes = max(call.nbytes_in, call.nbytes_out)
        unknown = not nbytes and call.identity is not Identity.RECORDED
        return call.op, call.group, call.ordinal, None if unknown else nbytes, call.dtype
    assert comm.hook is not None
    return HOOK_OP, "", comm.hook.seq, comm.hook.nbytes, comm.hook.dtype


def origin_of(comm: Communication, carriers: Container[int]) -> str | None:
    """Who wanted it; `carriers`: by seq, those that carried a bucket. A hook that did without collectives is its own
    origin; what the program seems to have sent and carried a bucket was a hook's that nobody saw being registered."""
    if comm.call is None or (comm.call.origin == PROGRAM and comm.seq in carriers):
        return HOOK
    return comm.call.origin


def _source(comm: Communication, known: _Known, member: Member) -> dict[str, Any]:
    """Where it comes from, what for, and between whom it goes as far as the call itself tells."""
    call, found = comm.call, {"origin": origin_of(comm, known.buckets)} | _unit(member)
    if call is None:
        return found
    return found | {
        "site": call.site,
        "through": call.through,
        "module": call.module,
        "turn": call.turn,
        "peer": call.peer,
        "error": call.error,
        "on_device": call.on_device,
        "launch_recorded": call.is_launch_recorded,
        "profiler_range": f"{RANGE_PREFIX}{call.seq}" if call.is_profiled else None,
        "unknown_args": call.unknown_args,
    }


def _unit(member: Member) -> dict[str, str | None]:
    is_known = member.kind is not UnitKind.OTHER
    return {
        "unit": member.name if is_known else None,
        "unit_role": member.role if is_known else None,
        "dimension": member.place.dimension,
    }


def _lane(comm: Communication) -> str | None:
    return comm.call.exec.lane if comm.call is not None and comm.call.exec is not None else None


def _identity(comm: Communication) -> Identity:
    return comm.call.identity if comm.call is not None else Identity.RECORDED


# DDP's broadcasts of buffers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BufferTime:
    """What DDP's broadcasts of buffers took one rank in one step."""

    step: int  # ordinal
    host_ns: int  # packing, sending and unpacking held the host
    cost_ns: int  # part of it in which the device was idle; all of it where the host computes


def buffer_times(view: RankView) -> tuple[BufferTime, ...]:
    """By step, of those that sent buffers. Where no profiler looked, the broadcasts alone tell, without the packing; on
    a device they tell nothing of the host."""
    spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for begin, end in _held(view):
        position = int(view.steps.at(np.array([begin], np.int64))[0])
        if position >= 0:
            spans[position].append((begin, end))
    if not spans:
        return ()
    idle = union(*(_gaps(window) for window in view.rank.windows))
    return tuple(_of_step(view, position, union(pairs(mine)), idle) for position, mine in sorted(spans.items()))


def _held(view: RankView) -> Iterator[tuple[int, int]]:
    for window in view.rank.windows:
        yield from window.buffers
    if view.is_on_device:
        return
    looked = [(window.begin_at_ns, window.end_at_ns) for window in view.rank.windows]
    for comm in view.comms:
        is_buffers = comm.call is not None and comm.call.origin == Origin.BUFFERS.word
        seen = any(begin <= comm.launch_at_ns < end for begin, end in looked)
        if is_buffers and not seen and comm.end_at_ns is not None:
            yield comm.launch_at_ns, max(comm.launch_at_ns, comm.end_at_ns)


def _gaps(window: Window) -> Intervals:
    return np.zeros((0, 2), np.int64) if window.idle is None else union(window.idle.gaps)


def _of_step(view: RankView, position: int, held: Intervals, idle: Intervals) -> BufferTime:
    host_ns = total(held)
    cost_ns = total(intersect(held, idle)) if view.is_on_device else host_ns
    return BufferTime(view.rank.steps[position].ordinal, host_ns, cost_ns)
