"""Finds the stretch of device time that belongs to each step, and what computed in it.

Where a profiler looked, it begins where the last work of the step before ended, and ends with the step's own last work:

host     [ step 0    ][ step 1    ][ step 2    ]
device      [==0==0=][=1==1=====][=2====2==]          numbers: the step that launched the work
window      .........|..........|..........|

Elsewhere events on the compute stream tell it:

compute stream   F────F─B──────W┄┄┄┄┄B  U──U F────F─B──────W┄┄┄┄┄B  U──U     marks, as the stream came to them
computes         ===============     =  ==== ===============     =  ====     all but the wait, and what lies in no phase
window            ..........step 0........|...........step 1...........|     from where the step before ended

The wait at the end of backward lasts until the last collective that backward launched is over. From where the host put
an event on the stream to where the stream came to it, the stream had work:

host             P      Q           an event is put on the stream
stream               P       Q      the stream comes to it
had work         ┄┄┄┄┄  ┄┄┄┄┄┄      so it computes or waits, whatever phase it is in
unsure                ▒▒            it may have run out of work: in a phase this counts as compute, else as idle

Where the host is known to have launched nothing behind an event, the stream had nothing to do from there on.

A device on which several processes compute serves one after another, so a stream that has work may stand still. There
only a wait tells what the stream did; all else is unsure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.intervals import EMPTY, Ints, Pieces, intersect, pairs, subtract, union
from ddptrace.load.tables import Call, DeviceEvents, DeviceWork, Intervals, Window
from ddptrace.schema import DeviceMark, Origin, Phase

_NEVER = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """One profiler window's work. `launched_by`: the position of the step that launched each piece of it, -1 where that
    was none of the window's steps, or is not known."""

    work: DeviceWork
    launched_by: Ints
    steps: Ints  # positions of the steps whose device time it tells


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """`windows`, shape (steps, 2), are disjoint and in time order; a step that launched nothing has an empty one. Where
    neither a profiler nor events tell the step's device time, its window is its wall time, less what device time of a
    step before still takes of it."""

    windows: Intervals
    on_device: NDArray[np.bool_]  # by step: a profiler tells its device time
    by_events: NDArray[np.bool_]  # by step: no profiler does, and events do
    profiled: tuple[DeviceWindow, ...]


def device_steps(walls: Intervals, windows: Sequence[Window], seen_in: Ints, events: EventSteps) -> DeviceSteps:
    """`seen_in`: by step, the position of the profiler window that it lies in, -1 for none."""
    begins, ends = walls[:, 0].copy(), walls[:, 1].copy()
    on_device = np.zeros(len(walls), np.bool_)
    profiled = []
    for position, window in enumerate(windows):
        if window.device is None:
            continue
        steps = np.flatnonzero(seen_in == position)
        if not window.device.launched.any():
            steps = steps[:0]
        nth = _nth_launching(window.device, walls[steps])
        profiled.append(DeviceWindow(window.device, np.append(steps, -1)[nth], steps))
        if len(steps):
            on_device[steps] = True
            begins[steps], ends[steps] = _device_time(window.device, walls[steps], nth)
    by_events = events.seen & (seen_in < 0)
    begins[by_events], ends[by_events] = events.windows[by_events].T
    if on_device.any() or by_events.any():
        begins, ends = _one_after_another(begins, ends)
    return DeviceSteps(np.column_stack((begins, ends)), on_device, by_events, tuple(profiled))


def _nth_launching(work: DeviceWork, hosts: Intervals) -> Ints:
    """Which of the steps launched each piece of work, -1 none of them. What was launched between two steps belongs to
    the later one."""
    if not len(hosts):
        return np.full(len(work.kind), -1, np.int64)
    nth = np.searchsorted(hosts[:, 1], work.launch_begin_at_ns, side="right")
    known = work.launched & (nth < len(hosts)) & (work.launch_begin_at_ns >= hosts[0, 0])
    return np.where(known, nth, -1)


def _device_time(work: DeviceWork, hosts: Intervals, nth: Ints) -> tuple[Ints, Ints]:
    """Begin and end of each step's device time, the lowest number where it is wherever the step before ended."""
    begins = np.full(len(hosts), _NEVER.min)
    ends = begins.copy()
    known = nth >= 0
    np.maximum.at(ends, nth[known], work.end_at_ns[known])
    begins[0] = _first_begin(work, int(hosts[0, 0]), nth == 0)
    return begins, ends


def device_spans(work: DeviceWork, chosen: NDArray[np.bool_]) -> Intervals:
    """Begin and end of the chosen events, shape (n, 2), as they are: they may overlap."""
    return np.column_stack((work.begin_at_ns[chosen], work.end_at_ns[chosen]))


def _first_begin(work: DeviceWork, host_begin: int, own: NDArray[np.bool_]) -> int:
    """Where the work before the window's first step ended: launched before it, or without a launch but running before
    the step's own."""
    own_from = work.begin_at_ns[own].min() if own.any() else host_begin
    early = np.where(work.launched, work.launch_begin_at_ns < host_begin, work.begin_at_ns < own_from)
    return int(work.end_at_ns[early].max()) if early.any() else host_begin


def _one_after_another(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Intervals that do not reach back behind the one before."""
    ends = np.maximum.accumulate(np.maximum(begins, ends))
    return np.maximum(begins, np.append(begins[:1], ends[:-1])), ends


# By events on the compute stream --------------------------------------------------------------------------------------


BEGINS: Final = {
    DeviceMark.FORWARD_BEGIN: Phase.FORWARD,
    DeviceMark.BACKWARD_BEGIN: Phase.BACKWARD,
    DeviceMark.UPDATE_BEGIN: Phase.OPTIMIZER,
}
ENDS: Final = {
    DeviceMark.FORWARD_END: Phase.FORWARD,
    DeviceMark.BACKWARD_END: Phase.BACKWARD,
    DeviceMark.UPDATE_END: Phase.OPTIMIZER,
}

WAITS: Final = 0
"""Beside the numbers of phases."""
WAITED_AT_ONCE: Final = (
    Origin.BUFFERS.word,
    Origin.REBUILD.word,
    Origin.CONSTRUCTION.word,
    Origin.UNUSED_PARAMETERS.word,
)


@dataclass(frozen=True, slots=True)
class EventSteps:
    """`windows`, shape (steps, 2), hold where `seen` is true. `phases`: when the compute stream was in a phase and did
    not wait, labelled by Phase."""

    windows: Intervals
    seen: NDArray[np.bool_]  # by step
    untimed: NDArray[np.bool_]  # by step: some of its events were not recorded
    phases: Pieces
    compute: Intervals  # these phases, and what else the stream had to do
    unsure: Intervals  # the stream may have computed or not; within a step's window
    idle: Intervals  # the stream had nothing to do: the host is known to have launched nothing


def event_steps(
    events: DeviceEvents | None,
    walls: Intervals,
    comms: Sequence[Communication],
    unrecorded: NDArray[np.bool_],
    *,
    is_shared: bool,
) -> EventSteps:
    """`walls`: begin and end of each step on the host. `unrecorded`: by step, whether collectives may be missing in its
    records. `is_shared`: other processes compute on the device, too. A step is seen if both of its ends are, if nothing
    in it was left untimed, and if all that it communicated on the device was recorded and seen."""
    seen = untimed = np.zeros(len(walls), np.bool_)
    if events is None or not len(walls) or not len(events.mark):
        return EventSteps(
            np.zeros((len(walls), 2), np.int64), seen, untimed, Pieces.numbered(EMPTY), EMPTY, EMPTY, EMPTY
        )
    order = np.argsort(events.placed_at_ns, kind="stable")
    mark, placed, at = events.mark[order], events.placed_at_ns[order], events.at_ns[order]
    timed = mark != DeviceMark.UNTIMED
    ends, known = _over(placed[timed], at[timed], walls)
    begins = np.append(at[timed][:1], ends[:-1])
    began = np.append(len(placed[timed]) > 0, known[:-1])
    untimed = _holds(walls, placed[~timed])
    seen = known & began & (ends > begins) & ~untimed & ~unrecorded
    seen &= ~_holds(walls, _unknown(comms, int(placed[0])))
    stretches = _pieces(list(_stretches(mark, placed, at, comms)))
    waits = union(stretches.only(WAITS).spans(), events.waits, _stood(comms))
    phases = _without(stretches.only(*ENDS.values()), waits)
    windows = np.column_stack((begins, ends))
    placed, at = np.append(placed[timed], events.still[:, 0]), np.append(at[timed], events.still[:, 1])
    busy, idle = _had_work(placed, at, comms), union(events.still[:, 1:])
    compute = union(subtract(phases.spans(), idle), subtract(busy, waits))
    sure = waits if is_shared else union(_had_work(placed, at - events.error_ns, comms), waits)
    unsure = _unsure(events, union(windows[seen]), sure, waits, comms)
    return EventSteps(windows, seen, untimed, phases, compute, unsure, subtract(idle, union(busy, waits)))


def _unsure(
    events: DeviceEvents, windows: Intervals, sure: Intervals, waits: Intervals, comms: Sequence[Communication]
) -> Intervals:
    """When the device may have computed or not. If the compute stream waits for events of other streams, these have
    work, too, of which nothing else tells unless it communicates."""
    if len(events.waits):
        ran = [(one.begin_at_ns, one.end_at_ns) for one in comms]
        known = pairs((begin, end) for begin, end in ran if begin is not None and end is not None)
        others = subtract(union(events.waits), union(known))
    else:
        sure = union(sure, union(events.still[:, 1:] + (events.error_ns, 0)))
        others = subtract(_untold(comms), waits)
    return union(subtract(windows, sure), intersect(others, windows))


def _had_work(placed: Ints, at: Ints, comms: Sequence[Communication]) -> Intervals:
    """When the compute stream had work: an event was on it that it had not come to yet."""
    launches = [
        (comm.launch_at_ns, comm.call.events.ready_at_ns)
        for comm in comms
        if comm.call is not None
        and comm.call.events is not None
        and (comm.call.reducer is not None or comm.call.events.of_marks)
    ]
    return union(np.column_stack((placed, at)), pairs(launches))


CAUGHT_UP_NS: Final = 100_000
"""An event that happened this soon after the host had put it on the stream found the stream empty."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Ends of phases on the device (`ends`), and at how many of them it had nothing more to do."""

    ends: int
    dry: int


def caught_up(events: DeviceEvents | None) -> CaughtUp | None:
    """Count the ends of work at which the device had caught up with the host: before these it has waited for it."""
    if events is None:
        return None
    ends = np.isin(events.mark, (DeviceMark.FORWARD_END, DeviceMark.WAIT_BEGIN, DeviceMark.UPDATE_END))
    behind = (events.at_ns - events.placed_at_ns)[ends]
    return CaughtUp(len(behind), int((behind < max(CAUGHT_UP_NS, 2 * events.error_ns)).sum()))


def _over(placed: Ints, at: Ints, walls: Intervals) -> tuple[Ints, NDArray[np.bool_]]:
    """When the device had done what each step launched: as it came to the first mark after the step's end on the host,
    if that is still in the next step."""
    following = np.searchsorted(placed, walls[:, 1])
    until = np.append(walls[1:, 1], np.iinfo(np.int64).max)
    there = np.minimum(following, len(placed) - 1)
    return at[there], (following < len(placed)) & (placed[there] < until)


def _unknown(comms: Sequence[Communication], since: int) -> Ints:
    """Launches on the device of which nothing tells when they ran. What was waited for before the first mark was over
    then."""
    unknown = [
        comm.launch_at_ns
        for comm in comms
        if comm.call is not None and comm.call.on_device and comm.end_at_ns is None
        if comm.launch_at_ns >= since or not (comm.call.is_sync or comm.call.origin in WAITED_AT_ONCE)
    ]
    return np.array(unknown, np.int64)


def _holds(walls: Intervals, instants: Ints) -> NDArray[np.bool_]:
    """Which steps hold any of the instants."""
    instants = np.sort(instants)
    first, last = np.searchsorted(instants, walls[:, 0]), np.searchsorted(instants, walls[:, 1])
    return np.asarray(last > first, np.bool_)


def _stretches(
    mark: NDArray[np.uint8], placed: Ints, at: Ints, comms: Sequence[Communication]
) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, Phase) between each two marks in which the stream computed, and (begin, end, WAITS) where it
    waited for buckets."""
    launches, released = _released(comms)
    rows = list(zip(mark.tolist(), placed.tolist(), at.tolist(), strict=True))
    inside: list[Phase] = []
    launched_from, resumes = 0, None
    for (kind, put, begin), (following, next_put, end) in pairwise(rows):
        if kind in BEGINS:
            inside.append(BEGINS[DeviceMark(kind)])
            launched_from = put if kind == DeviceMark.BACKWARD_BEGIN else launched_from
        elif kind in ENDS and ENDS[DeviceMark(kind)] in inside:
            while inside.pop() is not ENDS[DeviceMark(kind)]:
                pass
            resumes = None if kind == DeviceMark.BACKWARD_END else resumes
        elif kind == DeviceMark.WAIT_BEGIN:
            first, last = np.searchsorted(launches, (launched_from, next_put))
            resumes = int(released[first:last].max(initial=begin))
            yield begin, resumes, WAITS
        elif kind == DeviceMark.UNTIMED:
            inside.clear()
            resumes = None
        loses = kind == DeviceMark.FORWARD_END and following == DeviceMark.BACKWARD_BEGIN and not inside
        if (inside or loses) and following != DeviceMark.UNTIMED:
            yield max(begin, resumes or begin), end, inside[-1] if inside else Phase.FORWARD


def _released(comms: Sequence[Communication]) -> tuple[Ints, Ints]:
    """Launches and ends of the collectives on the device that a reducer issued."""
    rows = [
        (comm.launch_at_ns, comm.end_at_ns)
        for comm in comms
        if comm.call is not None
        and comm.call.on_device
        and comm.call.reducer is not None
        and comm.end_at_ns is not None
    ]
    found = pairs(rows)
    return found[:, 0], found[:, 1]


def _stood(comms: Sequence[Communication]) -> Intervals:
    """When the compute stream waited for a collective in the midst of a phase: where an event says so, and for what is
    waited for as soon as it is launched (a synchronous call, DDP's buffers, its agreement on buckets)."""
    spans = []
    for call, _, end in _beside_buckets(comms):
        spans += [(wait.begin_at_ns, wait.end_at_ns) for wait in call.stream_waits if wait.of_marks]
        if call.events is not None and _is_waited_at_once(call):
            spans.append((call.events.ready_at_ns, end))
    return union(pairs(spans))


def _is_waited_at_once(call: Call) -> bool:
    of_marks = call.events is not None and call.events.of_marks
    return (call.is_sync and of_marks) or (not call.stream_waits and call.origin in WAITED_AT_ONCE)


def _untold(comms: Sequence[Communication]) -> Intervals:
    """When collectives ran of which nothing tells whether the compute stream waited for them."""
    return union(
        pairs(
            (begin, end)
            for call, begin, end in _beside_buckets(comms)
            if not _is_waited_at_once(call) and not any(wait.of_marks for wait in call.stream_waits)
        )
    )


def _beside_buckets(comms: Sequence[Communication]) -> Iterator[tuple[Call, int, int]]:
    """Yield the collectives on the device that no reducer issued, with begin and end."""
    for comm in comms:
        call, begin, end = comm.call, comm.begin_at_ns, comm.end_at_ns
        if call is not None and call.on_device and call.reducer is None and begin is not None and end is not None:
            yield call, begin, end


def _without(pieces: Pieces, gone: Intervals) -> Pieces:
    source, begins, ends = Pieces.numbered(gone).outside(pieces.begins, pieces.ends)
    return Pieces(begins, ends, pieces.labels[source])


def _pieces(stretches: Sequence[tuple[int, int, int]]) -> Pieces:
    """Only what lasts; one stream does one thing after another."""
    columns = np.array([one for one in stretches if one[1] > one[0]], np.int64).reshape(-1, 3)
    begins = np.maximum(columns[:, 0], np.append(columns[:1, 0], np.maximum.accumulate(columns[:, 1])[:-1]))
    lasts = columns[:, 1] > begins
    return Pieces(begins[lasts], columns[lasts, 1], columns[lasts, 2])
