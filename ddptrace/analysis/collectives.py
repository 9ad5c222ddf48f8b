"""One row per collective, or per step it ran in where it crossed the end of one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddptrace.analysis.execution import Communication
from ddptrace.analysis.shares import Shares
from ddptrace.analysis.tables import CollectiveRow
from ddptrace.analysis.view import View

HOOK_OP = "comm_hook"
"""A hook that communicated by other means than a collective that was seen."""

BucketKey = tuple[int, int, int]
What = tuple[str, str, int, int, str]


def collective_rows(view: View, shares: Shares) -> list[CollectiveRow]:
    """Rows in launch order. What belongs to the call as a whole (wait and queue) is told in its part 0 only."""
    buckets = {comm.seq: (one.reducer, one.layout, one.index) for one in view.found for comm in one.comms}
    rows = [*_executed(view, shares, buckets), *_unknown(view, buckets)]
    return sorted(rows, key=lambda row: (row.launch_at_ns, row.seq, row.part))


def _executed(view: View, shares: Shares, buckets: dict[int, BucketKey]) -> Iterator[CollectiveRow]:
    columns = (shares.comm, shares.step, shares.begins, shares.ends, shares.hidden, shares.charged)
    previous, part = -1, 0
    for at, step, begin, end, hidden, charged in zip(*(column.tolist() for column in columns), strict=True):
        comm = view.comms[at]
        part = part + 1 if at == previous else 0
        previous = at
        yield CollectiveRow(
            view.rank.rank, view.ordinal(step), comm.seq, part, *_what(comm), comm.launch_at_ns, begin, end,
            comm.done_at_ns, None if part else view.wait_ns.get(comm.seq), None if part else begin - comm.launch_at_ns,
            end - begin, hidden, end - begin - hidden, charged, comm.evidence, buckets.get(comm.seq),
        )  # fmt: skip


def _unknown(view: View, buckets: dict[int, BucketKey]) -> Iterator[CollectiveRow]:
    """Those of which nothing tells when they ran, in the step that launched them."""
    comms = [comm for comm in view.comms if comm.end_at_ns is None]
    steps = view.steps.at(np.array([comm.launch_at_ns for comm in comms], np.int64))
    for comm, step in zip(comms, steps.tolist(), strict=True):
        nothing = (None,) * 2, (None,) * 7
        yield CollectiveRow(
            view.rank.rank, view.ordinal(step), comm.seq, 0, *_what(comm), comm.launch_at_ns, *nothing[0],
            comm.done_at_ns, *nothing[1], buckets.get(comm.seq),
        )  # fmt: skip


def _what(comm: Communication) -> What:
    """Op, group, ordinal, bytes (of the larger side: the whole of what is gathered or scattered), dtype."""
    if comm.call is not None:
        call = comm.call
        return call.op, call.group, call.ordinal, max(call.nbytes_in, call.nbytes_out), call.dtype
    assert comm.hook is not None
    return HOOK_OP, "", comm.hook.seq, comm.hook.nbytes, comm.hook.dtype
