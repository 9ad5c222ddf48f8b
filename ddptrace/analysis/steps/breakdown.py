"""Where each step's time went: integer parts of its window that add up exactly. And of each execution, the part that
was hidden, exposed, and charged; cut where a step ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ddptrace.analysis.collectives.execution import Communication, weakest
from ddptrace.analysis.intervals import Ints, Measure, Pieces, intersect, pairs, subtract, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.steps.phases import phase_totals
from ddptrace.analysis.tables.steps import PartialStepRow, StepRow
from ddptrace.load.tables import Intervals, RankRun
from ddptrace.schema import Evidence

UNKNOWN: Final[dict[str, Any]] = dict.fromkeys(
    (
        "compute_ns",
        "comm_ns",
        "hidden_ns",
        "exposed_comm_ns",
        "exposed_memory_ns",
        "idle_ns",
        "overlap_ratio",
    )
)


def step_rows(view: RankView, shares: Shares) -> list[StepRow]:
    """One row per step of the rank, in time order. What nothing told of a step is None."""
    columns = *_parts(view), *phase_totals(view.steps, view.phases).T
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    waits, evidence = _waits(view), _evidence(view, shares)
    paused = _within(view, union(pairs((p.begin_at_ns, p.end_at_ns) for p in view.rank.pauses))).tolist()
    rows = []
    for position, (window, *parts, remote, other, data, forward, backward, optimizer) in enumerate(numbers):
        mark, is_known = view.rank.steps[position], view.knows_compute(position)
        rows.append(
            StepRow(
                rank=view.rank.rank,
                step=mark.ordinal,
                begin_at_ns=mark.begin_at_ns,
                end_at_ns=mark.end_at_ns,
                wall_ns=mark.end_at_ns - mark.begin_at_ns,
                window_ns=window,
                **(_partition(window, *parts) if is_known else UNKNOWN),
                evidence=evidence.get(position) if is_known else None,
                data_ns=data,
                forward_ns=forward,
                backward_ns=backward,
                optimizer_ns=optimizer,
                other_ns=other,
                wait_ns=waits[position],
                paused_ns=paused[position],
                profiled=bool(view.profiled[position]),
                ended_by=mark.ended_by.name.lower(),
                rpc_wait_ns=remote if view.rank.recorded and is_known else None,
            )
        )
    return rows


def _partition(window: int, compute: int, comm: int, hidden: int, memory: int) -> dict[str, Any]:
    exposed = comm - hidden
    return {
        "compute_ns": compute, "comm_ns": comm, "hidden_ns": hidden, "exposed_comm_ns": exposed,
        "exposed_memory_ns": memory, "idle_ns": window - compute - exposed - memory,
        "overlap_ratio": hidden / comm if comm else None,
    }  # fmt: skip


def partial_step_rows(rank: RankRun) -> list[PartialStepRow]:
    return [
        PartialStepRow(
            rank.rank,
            mark.ordinal,
            mark.begin_at_ns,
            mark.end_at_ns,
            mark.end_at_ns - mark.begin_at_ns,
            mark.ended_by.name.lower(),
        )
        for mark in rank.partial_steps
    ]


def _parts(view: RankView) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """By step: window, compute, comm, hidden, exposed memory, and what of the idle rest was spent on remote calls."""
    begins, ends = view.windows.begins, view.windows.ends
    comm = communicating(view)
    memory = subtract(subtract(view.memory, view.compute), comm)
    unions = (view.compute, comm, intersect(comm, view.compute), memory, remote_idle(view))
    compute_ns, comm_ns, hidden_ns, memory_ns, remote_ns = (Measure(part).within(begins, ends) for part in unions)
    return ends - begins, compute_ns, comm_ns, hidden_ns, memory_ns, remote_ns


def remote_idle(view: RankView) -> Intervals:
    """Blocked on remote calls while nothing else ran."""
    return subtract(view.remote, union(view.compute, communicating(view), view.memory))


def communicating(view: RankView) -> Intervals:
    """Union of all executions that are known."""
    known = ((c.begin_at_ns, c.end_at_ns) for c in view.comms)
    return union(pairs((begin, end) for begin, end in known if begin is not None and end is not None))


def _waits(view: RankView) -> list[int | None]:
    """By step: how long the host was blocked, without what it computed meanwhile. None where the step has
    communication and of none of it is known whether the host waited."""
    waited = _within(view, subtract(view.waits.host, view.host_compute)).tolist()
    known: dict[int, bool] = defaultdict(bool)
    launches = np.array([comm.launch_at_ns for comm in view.comms], np.int64)
    for comm, step in zip(view.comms, view.steps.at(launches).tolist(), strict=True):
        known[step] |= comm.seq in view.waits.by_seq
    return [ns if ns or known.get(step, True) else None for step, ns in enumerate(waited)]


def _evidence(view: RankView, shares: Shares) -> dict[int, Evidence | None]:
    """By step: the weakest evidence of what communicated in it."""
    seen: dict[int, set[Evidence | None]] = defaultdict(set)
    for step, comm in zip(shares.step.tolist(), shares.comm.tolist(), strict=True):
        seen[step].add(view.comms[comm].evidence)
    return {step: weakest(evidences) for step, evidences in seen.items()}


def _within(view: RankView, spans: Intervals) -> Ints:
    return Measure(spans).within(view.steps.begins, view.steps.ends)


# Hidden, exposed and charged parts of executions ----------------------------------------------------------------------


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
