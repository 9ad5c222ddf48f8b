"""Hidden, exposed and charged parts of each execution, cut where a step ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.intervals import Ints, Measure, Pieces
from ddptrace.load.tables import Intervals


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of executions, each inside one step or outside all. Shape (parts,), by communication, then time."""

    comm: Ints  # position of the communication
    step: Ints  # position of the step, -1 outside
    begins: Ints
    ends: Ints
    hidden: Ints
    charged: Ints

    def charged_by_comm(self, count: int) -> Ints:
        totals = np.zeros(count, np.int64)
        np.add.at(totals, self.comm, self.charged)
        return totals


def shares_of(comms: Sequence[Communication], windows: Pieces, compute: Intervals) -> Shares:
    """All parts of all executions that are known."""
    known = np.array([i for i, comm in enumerate(comms) if comm.end_at_ns is not None], np.int64)
    begins = np.array([comm.begin_at_ns for comm in comms if comm.end_at_ns is not None], np.int64)
    ends = np.array([comm.end_at_ns for comm in comms if comm.end_at_ns is not None], np.int64)
    paying = _paying_from(begins, ends, np.array([comms[i].seq for i in known], np.int64))
    source, floor, ceiling = windows.split(begins, ends)
    measure = Measure(compute)
    hidden = measure.within(floor, ceiling)
    payer = np.minimum(np.maximum(floor, paying[source]), ceiling)
    charged = ceiling - payer - measure.within(payer, ceiling)
    return Shares(known[source], windows.at(floor), floor, ceiling, hidden, charged)


def _paying_from(begins: Ints, ends: Ints, seqs: Ints) -> Ints:
    """From when on each execution is the first-started of those that run; not before its end where it never is."""
    order = np.lexsort((seqs, begins))
    over = np.maximum.accumulate(ends[order])
    paying = np.empty_like(begins)
    paying[order] = np.maximum(begins[order], np.append(begins[order][:1], over[:-1]))
    return paying
