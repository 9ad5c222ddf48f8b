"""Where each step's time went: integer parts of its window that add up exactly."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from ddptrace.analysis.collectives.execution import executions, weakest
from ddptrace.analysis.intervals import Ints, Measure, intersect, pairs, subtract, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.steps.phases import PHASE_NAMES, phase_totals, stretches
from ddptrace.analysis.tables.steps import PartialStepRow, PhaseRow, StepRow
from ddptrace.load.tables import Intervals
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


def step_rows(view: RankView) -> list[StepRow]:
    """One row per step of the rank, in time order. What nothing told of a step is None."""
    columns = *_parts(view), *phase_totals(view.steps, view.phases).T
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    waits, evidence, under_profiler = _waits(view), _evidence(view), _under_profiler(view)
    paused = _within(view, union(pairs((p.begin_at_ns, p.end_at_ns) for p in view.rank.pauses))).tolist()
    unsure = _unsure(view)
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
                under_profiler=position in under_profiler,
                unsure_ns=unsure[position],
            )
        )
    return rows


def _partition(window: int, compute: int, comm: int, hidden: int, memory: int) -> dict[str, Any]:
    exposed = comm - hidden
    return {
        "compute_ns": compute,
        "comm_ns": comm,
        "hidden_ns": hidden,
        "exposed_comm_ns": exposed,
        "exposed_memory_ns": memory,
        "idle_ns": window - compute - exposed - memory,
        "overlap_ratio": hidden / comm if comm else None,
    }


def _unsure(view: RankView) -> list[int | None]:
    """By step: how long events leave open whether the device computed; None where more than events tells."""
    within = Measure(view.events.unsure).within(view.windows.begins, view.windows.ends).tolist()
    return [ns if by_events else None for ns, by_events in zip(within, view.device.by_events, strict=True)]


def partial_step_rows(view: RankView) -> list[PartialStepRow]:
    """List the steps of which only the length is known, in time order."""
    return [
        PartialStepRow(
            view.rank.rank,
            mark.ordinal,
            mark.begin_at_ns,
            mark.end_at_ns,
            mark.end_at_ns - mark.begin_at_ns,
            mark.ended_by.name.lower(),
        )
        for mark in view.rank.partial_steps
    ]


def phase_rows(view: RankView) -> list[PhaseRow]:
    """Cut each step into stretches of one phase, without a gap and in time order."""
    step, begins, ends, labels = stretches(view.steps, view.phases)
    ordinals = [mark.ordinal for mark in view.rank.steps]
    rows = zip(step.tolist(), labels.tolist(), begins.tolist(), ends.tolist(), strict=True)
    return [PhaseRow(view.rank.rank, ordinals[k], PHASE_NAMES[label], begin, end) for k, label, begin, end in rows]


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
    """Union of all executions that are known, and of kernels of no recorded call."""
    return union(executions(view.comms), view.unclaimed)


def unclaimed_ns(view: RankView) -> Ints:
    """By step: how long only kernels of no recorded call communicated."""
    return Measure(view.unclaimed).within(view.windows.begins, view.windows.ends)


def _waits(view: RankView) -> list[int | None]:
    """By step: how long the host was blocked, without what it computed meanwhile. None where the step has
    communication and of none of it is known whether the host waited, or where calls may not have been recorded."""
    waited = _within(view, subtract(view.waits.host, view.host_compute)).tolist()
    known: dict[int, bool] = defaultdict(bool)
    launches = np.array([comm.launch_at_ns for comm in view.comms], np.int64)
    for comm, step in zip(view.comms, view.steps.at(launches).tolist(), strict=True):
        known[step] |= comm.seq in view.waits.by_seq
    lacking = zip(waited, view.unrecorded.tolist(), strict=True)
    return [None if lacks or not (ns or known.get(step, True)) else ns for step, (ns, lacks) in enumerate(lacking)]


def _under_profiler(view: RankView) -> set[int]:
    """Return the positions of the steps in which a profiler ran. A run that is still being recorded has no window to
    read, but each call records whether a profiler saw it."""
    launches = np.array([call.launch_at_ns for call in view.rank.calls if call.is_profiled], np.int64)
    return {*np.flatnonzero(view.profiled).tolist(), *view.steps.at(launches).tolist()}


def _evidence(view: RankView) -> dict[int, Evidence | None]:
    """By step: the weakest evidence of what communicated in it."""
    seen: dict[int, set[Evidence | None]] = defaultdict(set)
    for step, comm in zip(view.shares.step.tolist(), view.shares.comm.tolist(), strict=True):
        seen[step].add(view.comms[comm].evidence)
    for step in np.flatnonzero(unclaimed_ns(view)).tolist():
        seen[step].add(Evidence.DEVICE)
    return {step: weakest(evidences) for step, evidences in seen.items()}


def _within(view: RankView, spans: Intervals) -> Ints:
    return Measure(spans).within(view.steps.begins, view.steps.ends)
