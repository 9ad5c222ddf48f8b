"""One row per occurrence of a gradient bucket."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.buckets.occurrences import Occurrence
from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.intervals import Measure, merged, pairs
from ddptrace.analysis.rank_view import RankView, once_per_rank
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.load.tables import Intervals
from ddptrace.rows import row
from ddptrace.schema import Evidence, Phase

Spans = tuple[tuple[int, int], ...]


@row
@dataclass(frozen=True, slots=True)
class _Ran:
    """Execution of a bucket: all of its communications together."""

    begin_at_ns: int
    end_at_ns: int
    comm_ns: int
    hidden_ns: int
    charged_ns: int
    evidence: Evidence | None


@once_per_rank
def bucket_rows(view: RankView) -> list[BucketRow]:
    """Rows in launch order. A bucket of several collectives is known only where all of them are."""
    steps = view.steps.at(np.array([occurrence.launch_at_ns for occurrence in view.found], np.int64)).tolist()
    nth = _backward_in_step(view, steps)
    return [
        _bucket_row(view, occurrence, step, nth[step, occurrence.backward], ran)
        for occurrence, step, ran in zip(view.found, steps, _executions(view), strict=True)
    ]


def _bucket_row(view: RankView, occurrence: Occurrence, step: int, backward: int, ran: _Ran | None) -> BucketRow:
    hook = occurrence.hook
    measured = ran if ran is not None and view.knows_compute(step, ran.evidence) else None
    return BucketRow(
        rank=view.rank.rank,
        step=view.ordinal(step),
        backward=backward,
        reducer=occurrence.reducer,
        layout=occurrence.layout,
        index=occurrence.index,
        nbytes=occurrence.nbytes or None,
        first_ready_at_ns=occurrence.first_ready_at_ns,
        ready_at_ns=occurrence.ready_at_ns,
        launch_at_ns=occurrence.launch_at_ns,
        exec_start_at_ns=None if ran is None else ran.begin_at_ns,
        exec_end_at_ns=None if ran is None else ran.end_at_ns,
        wait_ns=_wait(occurrence, view.wait_ns),
        comm_ns=None if ran is None else ran.comm_ns,
        hidden_ns=None if measured is None else measured.hidden_ns,
        exposed_ns=None if measured is None else measured.comm_ns - measured.hidden_ns,
        exposed_charged_ns=None if measured is None else measured.charged_ns,
        evidence=None if ran is None else ran.evidence,
        parameters=occurrence.parameters,
        queue_ns=None if ran is None else ran.begin_at_ns - occurrence.launch_at_ns,
        done_at_ns=_done(occurrence),
        hook=None if hook is None else hook.name,
        hook_ns=None if hook is None else hook.end_at_ns - hook.begin_at_ns,
        seqs=tuple(comm.seq for comm in occurrence.comms if comm.call is not None),
        identity=occurrence.identity,
    )


def _executions(view: RankView) -> list[_Ran | None]:
    """Of each occurrence; None where one of its communications is not known."""
    by_comm = view.shares.charged_by_comm(len(view.comms)).tolist()
    charged = dict(zip((comm.seq for comm in view.comms), by_comm, strict=True))
    spans = [_union_of(occurrence) for occurrence in view.found]
    return [
        _ran(occurrence, ran, hidden, charged) if ran else None
        for occurrence, ran, hidden in zip(view.found, spans, _hidden(spans, view.compute), strict=True)
    ]


def _ran(occurrence: Occurrence, ran: Spans, hidden_ns: int, charged: dict[int, int]) -> _Ran:
    comm_ns = sum(end - begin for begin, end in ran)
    charged_ns = sum(charged[comm.seq] for comm in occurrence.comms)
    return _Ran(
        ran[0][0], ran[-1][1], comm_ns, hidden_ns, charged_ns, weakest(comm.evidence for comm in occurrence.comms)
    )


def _union_of(occurrence: Occurrence) -> Spans:
    """Union of the executions, empty where one is not known."""
    known = [
        (c.begin_at_ns, c.end_at_ns) for c in occurrence.comms if c.begin_at_ns is not None and c.end_at_ns is not None
    ]
    return merged(known) if len(known) == len(occurrence.comms) else ()


def _hidden(unions: list[Spans], compute: Intervals) -> list[int]:
    """Nanoseconds of each union that lie in compute."""
    owner = np.repeat(np.arange(len(unions)), [len(spans) for spans in unions])
    flat = pairs(span for spans in unions for span in spans)
    hidden = np.zeros(len(unions), np.int64)
    np.add.at(hidden, owner, Measure(compute).within(flat[:, 0], flat[:, 1]))
    return [int(ns) for ns in hidden]


def _backward_in_step(view: RankView, steps: list[int]) -> dict[tuple[int, int], int]:
    """Ordinal of a backward among those of a step, by (step's position, backward in the rank): those that began in it,
    and one begun before whose buckets were launched only here."""
    marks = [m for m in view.rank.phases if m.phase is Phase.BACKWARD and m.backward is not None]
    began = view.steps.at(np.array([mark.begin_at_ns for mark in marks], np.int64)).tolist()
    members: dict[int, set[int]] = defaultdict(set)
    for step, mark in zip(began, marks, strict=True):
        members[step].add(mark.backward or 0)
    for step, occurrence in zip(steps, view.found, strict=True):
        members[step].add(occurrence.backward)
    return {(step, backward): nth for step, those in members.items() for nth, backward in enumerate(sorted(those))}


def _wait(occurrence: Occurrence, wait_ns: dict[int, int]) -> int | None:
    """Wait for all of a bucket's communications, None where one's is not known."""
    known = [wait_ns[comm.seq] for comm in occurrence.comms if comm.seq in wait_ns]
    return sum(known) if len(known) == len(occurrence.comms) else None


def _done(occurrence: Occurrence) -> int | None:
    """When the host learned that the bucket was over: its hook's future, else the last of its collectives."""
    if occurrence.hook is not None and occurrence.hook.done_at_ns is not None:
        return occurrence.hook.done_at_ns
    known = [comm.done_at_ns for comm in occurrence.comms if comm.done_at_ns is not None]
    return max(known) if len(known) == len(occurrence.comms) else None
