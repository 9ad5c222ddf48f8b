"""Tells what held the host while the device was idle, by step, and lists the longest idle gaps of each window.

step windows  |---- 3 ----|---- 4 ----|
gap                    |=====|                cut where a step's window ends
pieces                 copy op              row of step 3: copy, row of step 4: op
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints, Pieces, intersect, subtract, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.statistics import Alike, alike
from ddptrace.analysis.tables.device import IdleRow, LongGaps
from ddptrace.load.tables import HOST_AT_WORK, DeviceIdle, IdleCause, Window
from ddptrace.schema import Phase


def idle_rows(view: RankView) -> list[IdleRow]:
    """Add up the idle time of a rank's device by step, cause, name and operator, the longest of a step first.

    The rows of one step add up to `idle_ns` of its row in `launches`. Where only events tell of a step, they have the
    idle time that events prove.
    """
    idles = (_from_step_begin(view, window) for window in view.rank.windows)
    rows = [row for idle in idles if idle is not None for row in _rows(view, _while_nothing_ran(view, idle))]
    rows += _rows(view, _while_nothing_ran(view, _by_events(view)))
    return sorted(rows, key=lambda row: (row.step is None, row.step or 0, -row.idle_ns, row.cause, row.name))


def _from_step_begin(view: RankView, window: Window) -> DeviceIdle | None:
    """The idle time of a window, with the time before it that belongs to its first step, while the profiler started:
    nothing is recorded of that."""
    idle = window.idle
    if idle is None or window.device is None:
        return None
    known = [window.begin_at_ns, *idle.gaps[:1, 0].tolist(), int(window.device.begin_at_ns.min())]
    opened = min(known)
    step = int(view.windows.at(np.array([opened]))[0])
    begin = int(view.windows.spans()[step, 0]) if step >= 0 and view.device.on_device[step] else opened
    if begin >= opened:
        return idle
    return replace(
        idle,
        gap=np.append(0, idle.gap + 1),
        begin_at_ns=np.append(begin, idle.begin_at_ns),
        end_at_ns=np.append(opened, idle.end_at_ns),
        cause=np.append(np.uint8(IdleCause.NOTHING), idle.cause),
        name=np.append(-1, idle.name),
        operator=np.append(-1, idle.operator),
        gaps=np.concatenate(([(begin, opened)], idle.gaps)),
    )


def _by_events(view: RankView) -> DeviceIdle:
    """When the host launched nothing on a device that had run out of work: it fetched a batch, or stood still."""
    gaps = intersect(view.events.idle, union(view.device.windows[view.device.by_events]))
    data = view.phases.only(Phase.DATA).spans()
    causes = ((IdleCause.DATA, intersect(gaps, data)), (IdleCause.STILL, subtract(gaps, data)))
    spans = np.concatenate([pieces for _, pieces in causes])
    cause = np.concatenate([np.full(len(pieces), cause, np.uint8) for cause, pieces in causes])
    none = np.full(len(spans), -1)
    gap = np.searchsorted(gaps[:, 0], spans[:, 0], side="right") - 1
    return DeviceIdle(gap, spans[:, 0], spans[:, 1], cause, none, none, gaps, ())


def _while_nothing_ran(view: RankView, idle: DeviceIdle) -> DeviceIdle:
    """Leave out when events show work that the profiler does not: that of the step before, which still ran when the
    profiler started."""
    if view.rank.device_events is None:
        return idle
    ran = Pieces.numbered(union(np.column_stack((view.shares.begins, view.shares.ends)), view.compute, view.memory))
    source, begins, ends = ran.outside(idle.begin_at_ns, idle.end_at_ns)
    return replace(
        idle,
        gap=idle.gap[source],
        begin_at_ns=begins,
        end_at_ns=ends,
        cause=idle.cause[source],
        name=idle.name[source],
        operator=idle.operator[source],
    )


def _rows(view: RankView, idle: DeviceIdle) -> Iterator[IdleRow]:
    piece, begins, ends = view.windows.split(idle.begin_at_ns, idle.end_at_ns)
    full = ends > begins
    piece, begins, ends = piece[full], begins[full], ends[full]
    names, labels = _labels(idle)
    step = view.windows.at(begins)
    if len(idle.gaps):  # outside of steps, before the device's first work and after its last, nothing waited for it
        within = (step >= 0) | ((idle.gap[piece] > 0) & (idle.gap[piece] < len(idle.gaps) - 1))
        piece, begins, ends, step = piece[within], begins[within], ends[within], step[within]
    length = (idle.gaps[:, 1] - idle.gaps[:, 0])[idle.gap[piece]]
    by_length = np.argsort(-length, kind="stable")
    piece, step, length = piece[by_length], step[by_length], length[by_length]
    label, operator = labels[idle.name[piece]], labels[idle.operator[piece]]
    found = alike(step, idle.cause[piece].astype(np.int64), label, operator)
    reach = np.cumsum((ends - begins)[by_length][found.order])  # of all rows, one after the other
    before = np.append(0, reach)[found.first]
    half = np.searchsorted(reach, before[:-1] + (np.diff(before) + 1) // 2)
    columns = _distinct(found, idle.gap[piece]), np.diff(before), length[found.order][half]
    rank, words = view.rank.rank, [cause.word for cause in IdleCause]
    ordinals = [*(mark.ordinal for mark in view.rank.steps), None]  # the last, position -1: outside every step
    for (step, cause, name, operator), *figures in zip(
        found.keys.tolist(), *map(np.ndarray.tolist, columns), strict=True
    ):
        yield IdleRow(rank, ordinals[step], words[cause], names[name], names[operator], *figures)


def _distinct(found: Alike, values: Ints) -> Ints:
    """How many different values the rows of each group have."""
    group = alike(found.group, values[found.order]).keys[:, 0]
    return np.bincount(group, minlength=len(found.keys))


def _labels(idle: DeviceIdle) -> tuple[list[str], Ints]:
    """The names without what differs by process, each once, and by index into the file's names which of them it is. The
    last index, which is NOTHING's own, is the empty name."""
    used = np.unique(np.concatenate((idle.name, idle.operator)))
    names = {"": 0}
    labels = np.zeros(len(idle.names) + 1, np.int64)
    for index in used[used >= 0].tolist():
        labels[index] = names.setdefault(without_identity(idle.names[index]), len(names))
    return list(names), labels


# What held the host most, for a reader --------------------------------------------------------------------------------

LONG_GAP_NS: Final = 5_000_000
"""Launching takes microseconds: the host was held by something else."""
AT_WORK: Final = "work"
"""One cause for a reader: all of `HOST_AT_WORK`."""
AT_WORK_WORDS: Final = frozenset(cause.word for cause in HOST_AT_WORK)


@dataclass(frozen=True, slots=True)
class HeldBy:
    """One cause of idle time in some steps of some ranks."""

    cause: str  # as in `IdleRow`, or AT_WORK
    idle_ns: int  # all of it
    name: str  # what the largest part of it was in; "" where nothing was recorded
    operator: str  # the outermost operator around that
    ratio: float  # that part, of all of it
    half_gap_ns: int  # half of it lies in gaps that are at least as long

    @property
    def place(self) -> str:
        """What the host was in for the largest part; "" where nothing was recorded."""
        return within(self.name, self.operator)


def within(name: str, operator: str) -> str:
    """As in "cudaMemcpyAsync in aten::to"."""
    return f"{name} in {operator}" if operator and operator != name else name


def held_by(rows: Collection[IdleRow]) -> list[HeldBy]:
    """Add up rows of `idle` by cause, the longest first. Causes in which the host is at work count as one."""
    groups: defaultdict[str, list[IdleRow]] = defaultdict(list)
    for row in rows:
        groups[AT_WORK if row.cause in AT_WORK_WORDS else row.cause].append(row)
    found = [_held(cause, mine) for cause, mine in groups.items()]
    return sorted(found, key=lambda held: -held.idle_ns)


def _held(cause: str, rows: Collection[IdleRow]) -> HeldBy:
    by_name: Counter[tuple[str, str]] = Counter()
    for row in rows:
        by_name[row.name, row.operator] += row.idle_ns
    [((name, operator), largest_ns)] = by_name.most_common(1)
    idle_ns = by_name.total()
    return HeldBy(cause, idle_ns, name, operator, largest_ns / idle_ns, _half_gap(rows))


def _half_gap(rows: Collection[IdleRow]) -> int:
    """Half of the idle time lies in gaps that are at least as long."""
    half, seen = sum(row.idle_ns for row in rows) / 2, 0
    for row in sorted(rows, key=lambda row: -row.half_gap_ns):
        seen += row.idle_ns
        if seen >= half:
            return row.half_gap_ns
    return 0


@dataclass(frozen=True, slots=True)
class IdleDigest:
    """One cause of one rank's idle time: means over its steps that tell, or all of its windows where no step does."""

    rank: int
    cause: str
    name: str
    operator: str
    gaps: float
    idle_ns: int
    ratio: float  # of the rank's idle time
    half_gap_ns: int  # half of it lies in gaps that are at least as long


def idle_digest(rows: Collection[IdleRow], steps: Mapping[int, Collection[int]]) -> list[IdleDigest]:
    """By rank, and of each rank the longest first. `steps`: by rank, those that count; none for the windows whole."""
    chosen: defaultdict[int, list[IdleRow]] = defaultdict(list)
    for row in rows:
        if row.step in steps[row.rank] if steps.get(row.rank) else row.step is None:
            chosen[row.rank].append(row)
    return [digest for rank in sorted(chosen) for digest in _digests(rank, chosen[rank], len(steps.get(rank, ())) or 1)]


def _digests(rank: int, rows: Collection[IdleRow], count: int) -> list[IdleDigest]:
    whole_ns = sum(row.idle_ns for row in rows)
    by_name: defaultdict[tuple[str, str, str], list[IdleRow]] = defaultdict(list)
    for row in rows:
        by_name[row.cause, row.name, row.operator].append(row)
    found = []
    for key, mine in by_name.items():
        idle_ns, gaps = sum(row.idle_ns for row in mine), sum(row.gaps for row in mine)
        found.append(IdleDigest(rank, *key, gaps / count, round(idle_ns / count), idle_ns / whole_ns, _half_gap(mine)))
    return sorted(found, key=lambda digest: -digest.idle_ns)


# The longest gaps of each window, for a picture -----------------------------------------------------------------------


MOST_GAPS: Final = 50
"""Of one window."""
NOTHING: Final = -1
SEEN_RATIO: Final = 0.005
"""Of its gap: a shorter piece could not be seen beside the others."""


def long_gaps(view: RankView) -> tuple[LongGaps, ...]:
    """Return the longest idle gaps of each profiler window, and what the host did in them."""
    return tuple(_longest_gaps(window.idle) for window in view.rank.windows if window.idle is not None)


def _longest_gaps(idle: DeviceIdle) -> LongGaps:
    length = idle.gaps[:, 1] - idle.gaps[:, 0]
    longest = np.sort(np.argsort(-length, kind="stable")[:MOST_GAPS])
    nth = np.full(len(length) + 1, -1, np.int64)
    nth[longest] = np.arange(len(longest))
    lasted = idle.end_at_ns - idle.begin_at_ns
    seen = np.flatnonzero((nth[idle.gap] >= 0) & (lasted >= SEEN_RATIO * length[idle.gap]))
    used, name = np.unique(np.append(idle.name[seen], NOTHING), return_inverse=True)  # so that NOTHING comes first
    return LongGaps(
        idle.gaps[longest],
        nth[idle.gap[seen]],
        idle.begin_at_ns[seen],
        idle.end_at_ns[seen],
        idle.cause[seen],
        name.reshape(-1)[:-1] - 1,
        tuple(idle.names[index] for index in used[1:].tolist()),
        idle.around,
    )


# Names of ranges ------------------------------------------------------------------------------------------------------


IDENTITY: Final = re.compile(r" at 0x[0-9a-fA-F]+|(?<=CompiledFxGraph) \w{20,}")
"""The address of an object, or the hash of a compiled graph."""
COMPILED: Final = re.compile(r"Torch-Compiled Region|CompiledFxGraph|CompiledFunction")
"""Ranges in which a program that `torch.compile` made runs."""


def without_identity(name: str) -> str:
    """The name without what differs by process, as in `## Call CompiledFxGraph ##`."""
    return IDENTITY.sub("", name)


def is_compiled(name: str) -> bool:
    """Whether a range of this name runs what `torch.compile` made."""
    return COMPILED.search(name) is not None
