"""A rank's life between its meetings with others: what it did itself, by phase.

host    ├ forward ┤├ backward ──┤ wait 1 ├ wait 2 ┤├ opt ┤
events            . launch 1  launch 2   1        2     step end
local   └───── 1 ──────┘└── 2 ──┘            └─────┘

On a device the same: a collective is launched when it begins to run, and waited for while nothing computes before its
end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.intervals import Ints, Measure, Pieces, subtract, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.steps.phases import OTHER, PHASE_NAMES
from ddptrace.analysis.tables.ranks import LAUNCH, LOCAL_PHASES, STEP_END, WAIT, Trail
from ddptrace.load.tables import Intervals
from ddptrace.schema import Evidence, Origin

NO_SEQ: Final = -1
UNRECORDED: Final = -2
START, STEP, GAP, CALL, BLOCKED = range(5)
"""What is put in a trail; of what begins at one instant, in this order."""
KINDS: Final = np.array((WAIT, STEP_END, WAIT, LAUNCH, WAIT), np.int64)

Event = tuple[int, int, int, int, int]  # begin, what, end, seq, position of the step


FAR_NS: Final = 10**18
"""No run is thirty years long: records that say so are damaged, and sums of such instants overflow."""


def can_be(trail: Trail) -> bool:
    """Whether its instants are those of a run."""
    first, last = int(trail.at_ns.min(initial=0)), int(trail.at_ns.max(initial=0))
    return first > -FAR_NS and last < FAR_NS


def trail_of(view: RankView) -> Trail:
    """In time order; see `Trail`. Empty without steps."""
    steps = _device_steps(view) if view.is_on_device else view.steps
    if not len(steps.begins):
        nothing = np.zeros(0, np.int64)
        return Trail(view.rank.rank, nothing, nothing, nothing, nothing, np.zeros((0, len(LOCAL_PHASES)), np.int64))
    meetings = _on_device(view) if view.is_on_device else _on_host(view)
    phases = _device_phases(view) if view.is_on_device else view.phases
    return _trail(view, [*_steps(view, steps), *meetings], steps, phases)


def _trail(view: RankView, events: list[Event], steps: Pieces, phases: Pieces) -> Trail:
    """What happens during a wait is taken to happen at its end."""
    first, last = int(steps.begins[0]), int(steps.ends[-1])
    events = sorted(event for event in events if first <= event[0] <= last)
    begins, what, ends, seq, step = np.array(events, np.int64).reshape(-1, 5).T
    at = np.maximum.accumulate(ends)
    before = np.append(at[:1], at[:-1])
    begins = np.maximum(begins, before)
    ordinals = np.append(np.array([mark.ordinal for mark in view.rank.steps], np.int64), -1)
    return Trail(
        view.rank.rank,
        KINDS[what],
        at,
        seq,
        ordinals[np.where(what == STEP, step, steps.at(begins))],
        _by_phase(before, begins, phases),
        on_device=phases is not view.phases,
    )


def _by_phase(begins: Ints, ends: Ints, phases: Pieces) -> Ints:
    """Nanoseconds of each of `LOCAL_PHASES` in each [begin, end)."""
    named = [PHASE_NAMES.index(name) for name in LOCAL_PHASES]
    columns = [Measure(phases.only(label).spans()).within(begins, ends) for label in named if label != OTHER]
    known = np.column_stack(columns)
    return np.insert(known, LOCAL_PHASES.index("other"), ends - begins - known.sum(axis=1), axis=1)


def _steps(view: RankView, steps: Pieces) -> Iterator[Event]:
    """Their ends, and the stretches between them of which nothing was recorded: they are waited out."""
    reached = int(steps.begins[0])
    yield reached, START, reached, NO_SEQ, -1
    for begin, end, label in zip(steps.begins.tolist(), steps.ends.tolist(), steps.labels.tolist(), strict=True):
        if begin > reached:
            yield reached, GAP, begin, NO_SEQ, -1
        yield end, STEP, end, NO_SEQ, label
        reached = max(reached, end)


def _on_host(view: RankView) -> Iterator[Event]:
    for comm in view.comms:
        if comm.call is not None:
            yield comm.launch_at_ns, CALL, comm.launch_at_ns, comm.seq, -1
        waits = view.waits.by_seq.get(comm.seq)
        for begin, end in _unseen(comm) if waits is None else waits:
            yield begin, BLOCKED, end, comm.seq, -1


def _unseen(comm: Communication) -> Iterator[tuple[int, int]]:
    """DDP's C++ sends the buffers at forward, and returns when they are there."""
    if comm.call is not None and comm.call.origin == Origin.BUFFERS.word and comm.end_at_ns is not None:
        yield comm.issued_at_ns, max(comm.issued_at_ns, comm.end_at_ns)


def _on_device(view: RankView) -> Iterator[Event]:
    work = union(view.compute, view.memory)
    begins, ends = work[:, 0], np.append(work[:, 1], np.iinfo(np.int64).min)
    for comm in view.comms:
        if (
            comm.evidence in (Evidence.DEVICE, Evidence.EVENT)
            and comm.begin_at_ns is not None
            and comm.end_at_ns is not None
        ):
            yield comm.begin_at_ns, CALL, comm.begin_at_ns, comm.seq, -1
            worked_until = int(ends[np.searchsorted(begins, comm.end_at_ns) - 1])
            idle_from = max(comm.begin_at_ns, min(worked_until, comm.end_at_ns))
            if idle_from < comm.end_at_ns:
                yield idle_from, BLOCKED, comm.end_at_ns, comm.seq, -1
    for begin, end in subtract(view.unclaimed, work).tolist():
        yield begin, BLOCKED, end, UNRECORDED, -1


def _device_steps(view: RankView) -> Pieces:
    """Those whose device time is known."""
    windows = view.windows
    keep = (view.device.on_device | view.device.by_events) & (windows.ends > windows.begins)
    return Pieces(windows.begins[keep], windows.ends[keep], windows.labels[keep])


def _marked_phases(view: RankView) -> Intervals:
    """Begin, end and Phase, in the steps that only events tell of."""
    phases, windows = view.events.phases, view.windows
    source, begins, ends = windows.split(phases.begins, phases.ends)
    step = windows.at(begins)
    mine = (step >= 0) & view.device.by_events[step]
    return np.column_stack((begins, ends, phases.labels[source]))[mine]


def _joined(parts: list[Intervals]) -> list[Intervals]:
    """All parts as one, in time order and without overlaps: a window's last work may run into the step after it."""
    columns = np.concatenate(parts)
    columns = columns[np.argsort(columns[:, 0], kind="stable")]
    columns[:-1, 1] = np.minimum(columns[:-1, 1], columns[1:, 0])
    return [columns[columns[:, 1] > columns[:, 0]]]


def _device_phases(view: RankView) -> Pieces:
    """The host's phase that launched what the device does, until it does the next thing; or the phase that events
    mark on the device, until the next one."""
    parts = []
    for window in view.device.profiled:
        work = window.work
        begins, first = np.unique(work.begin_at_ns, return_index=True)
        labels = np.where(work.launched, view.phases.at(work.launch_begin_at_ns), OTHER)[first]
        ends = np.append(begins[1:], work.end_at_ns.max(initial=0))
        parts.append(np.column_stack((begins, ends, np.maximum(labels, OTHER))))
    if view.device.by_events.any():
        parts = _joined([*parts, _marked_phases(view)])
    columns = np.concatenate(parts) if parts else np.zeros((0, 3), np.int64)
    return Pieces(columns[:, 0], columns[:, 1], columns[:, 2])
