"""What is counted over time on one rank: bytes in flight, and the share of the step's communication hidden so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ddptrace.analysis.intervals import Measure, intersect, pairs, union
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.load.tables import Intervals

Sample = tuple[int, float]
"""Instant in ns since the run's zero, value from then on."""


def bytes_in_flight(rows: Sequence[CollectiveRow]) -> Iterator[Sample]:
    """Bytes of the collectives that were launched and not over yet; those whose end is unknown are not counted."""
    changes: dict[int, int] = {}
    for row in rows:
        end = row.exec_end_at_ns if row.exec_end_at_ns is not None else row.done_at_ns
        if row.part == 0 and row.nbytes is not None and end is not None and end > row.launch_at_ns:
            changes[row.launch_at_ns] = changes.get(row.launch_at_ns, 0) + row.nbytes
            changes[end] = changes.get(end, 0) - row.nbytes
    flying = 0
    for at_ns in sorted(changes):
        flying += changes[at_ns]
        yield at_ns, flying


def running_overlap(steps: Sequence[StepRow], rows: Sequence[CollectiveRow], compute: Intervals) -> Iterator[Sample]:
    """Hidden ÷ communication since the step began, said each time a collective ends; 0 at the step's begin."""
    spans = exec_spans(rows)
    comm, every_end = union(spans), np.unique(spans[:, 1])
    comm_so_far, hidden_so_far = Measure(comm), Measure(intersect(comm, union(compute)))
    for step in steps:
        low, high = np.searchsorted(every_end, [step.begin_at_ns, step.end_at_ns], "right")
        ends = every_end[low:high]
        begins = np.full_like(ends, step.begin_at_ns)
        comm_ns = comm_so_far.within(begins, ends)
        ends, begins, comm_ns = ends[comm_ns > 0], begins[comm_ns > 0], comm_ns[comm_ns > 0]
        if len(ends):
            ratios = hidden_so_far.within(begins, ends) / comm_ns
            yield step.begin_at_ns, 0.0
            yield from zip(ends.tolist(), ratios.tolist(), strict=True)


def exec_spans(rows: Sequence[CollectiveRow]) -> Intervals:
    """The exec intervals that are known, in the rows' order."""
    begins_ends = ((row.exec_start_at_ns, row.exec_end_at_ns) for row in rows)
    return pairs((begin, end) for begin, end in begins_ends if begin is not None and end is not None)
