"""The graph of a whole result: every profiler window of every rank, joined where ranks communicate.

host     ├ launch ┤      ├ launch ┤          Span.HOST between calls, Span.ORDER after what the host waited for
stream      └delay►├ kernel ┤─delay►├ k ┤    Span.DELAY after the launch, the stream's own order and other streams
rank 0                      ├ all-reduce ┤
rank 1                   ├──── all-reduce ┤  Span.TRANSFER after the last rank has come
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.timeline.graph import Arrows, Graph, Span, graph_of
from ddptrace.analysis.timeline.host import NONE, Host, host_of
from ddptrace.analysis.timeline.streams import before_on_stream, launched_before, waited_for
from ddptrace.load.tables import DeviceWork, HostCalls, Work
from ddptrace.ops import family_of

MOST_DELAY_NS: Final = 100_000
"""Work that begins later after all that it is known to wait for waits for something that is not known: the rest of its
delay is not played. It is where a file may lack work, as it often lacks kernels of CUDA graphs."""
RUNS: Final = np.array([Span.COMPUTE, Span.TRANSFER, Span.MEMORY], np.uint8)
"""By Work."""
NEVER: Final = -(2**61)


@dataclass(frozen=True, slots=True)
class StepEnd:
    """One step of one rank."""

    row: StepRow
    instant: int  # the device had done what the step launched
    before: int  # the same of the step before, or when the device time of the first step began


@dataclass(frozen=True, slots=True)
class Timeline:
    """`calls`: collectives that arrows of the graph belong to."""

    graph: Graph
    steps: tuple[StepEnd, ...]
    calls: tuple[CollectiveRow, ...]
    matched: int  # collectives in which ranks meet


def timeline_of(result: Result) -> Timeline:
    """Build the graph of all profiler windows in which a device worked.

    Raises:
        DdptraceError: The collectives of the ranks contradict each other.
    """
    rows = _executions(result)
    positions = {key: position for position, key in enumerate(rows)}
    first, windows = 0, []
    for activity in result.activity:
        mine = [row for row in result.steps if row.rank == activity.rank and row.profiled]
        for work, held in zip(activity.device, activity.host_calls, strict=True):
            windows.append(_Window.of(activity.rank, work, held, mine, rows, positions, first))
            first += windows[-1].count
    meetings, at_ns = _meetings(result, windows, first)
    found = [arrows for window in windows for arrows in window.arrows()] + meetings
    graph, number = graph_of(np.concatenate([*(window.at_ns() for window in windows), at_ns]), found)
    steps = tuple(
        StepEnd(row, int(number[instant]), int(number[before]))
        for window in windows
        for row, instant, before in window.steps()
    )
    return Timeline(graph, steps, tuple(rows.values()), len(at_ns))


def _executions(result: Result) -> dict[tuple[int, int], CollectiveRow]:
    """By rank and seq: each call whose execution is known, from its begin to its last end."""
    found: dict[tuple[int, int], CollectiveRow] = {}
    for row in result.collectives:
        if row.exec_start_at_ns is not None and row.part == 0:
            found[row.rank, row.seq] = row
    return found


@dataclass(frozen=True, slots=True)
class _Window:
    """One window's instants are numbered from `first`: those of the host, begins of work, ends of work, and from where
    the first step's device time began the ends of the steps on the device."""

    rank: int
    work: DeviceWork
    host: Host
    rows: tuple[StepRow, ...]
    step_of: Ints  # by work: position of the step that launched it, NONE for none
    call: Ints  # by work: position of its collective, NONE for none
    first: int
    lacks_work: bool  # it may lack kernels of CUDA graphs, so that delays are kept whole

    @classmethod
    def of(
        cls,
        rank: int,
        work: DeviceWork,
        held: HostCalls,
        rows: Sequence[StepRow],
        calls: dict[tuple[int, int], CollectiveRow],
        positions: dict[tuple[int, int], int],
        first: int,
    ) -> _Window:
        ends = np.array([row.end_at_ns for row in rows], np.int64)
        step_of = np.where(work.launched, np.searchsorted(ends, work.launch_begin_at_ns, side="right"), len(rows))
        begins = np.append(np.array([row.begin_at_ns for row in rows], np.int64), np.iinfo(np.int64).max)
        used = np.unique(step_of[(step_of < len(rows)) & (work.launch_begin_at_ns >= begins[step_of])])
        kept = tuple(rows[position] for position in used.tolist())
        step = np.searchsorted(used, step_of)
        known = np.isin(step_of, used) & (work.launch_begin_at_ns >= begins[step_of])
        host = host_of(work, held, np.array([row.end_at_ns for row in kept], np.int64))
        mine = [(row, positions[key]) for key, row in calls.items() if key[0] == rank]
        return cls(rank, work, host, kept, np.where(known, step, NONE), _calls_of(work, mine), first, held.graphs > 0)

    @property
    def count(self) -> int:
        return len(self.host.at_ns) + 2 * len(self.work.kind) + len(self.rows) + 1

    @property
    def begins(self) -> Ints:
        return self.first + len(self.host.at_ns) + np.arange(len(self.work.kind))

    @property
    def ends(self) -> Ints:
        return self.begins + len(self.work.kind)

    @property
    def step_ends(self) -> Ints:
        """From where the first step's device time began."""
        return self.first + self.count - len(self.rows) - 1 + np.arange(len(self.rows) + 1)

    def at_ns(self) -> Ints:
        """Of all instants."""
        return np.concatenate((self.host.at_ns, self.work.begin_at_ns, self.work.end_at_ns, self._step_ends_ns()))

    def _step_ends_ns(self) -> Ints:
        ends = np.full(len(self.rows), NEVER)
        known = self.step_of != NONE
        np.maximum.at(ends, self.step_of[known], self.work.end_at_ns[known])
        ends = np.maximum.accumulate(ends)
        began = ends[:1] - self.rows[0].window_ns if self.rows else np.zeros(1, np.int64)
        return np.concatenate((began, ends))

    def steps(self) -> Iterator[tuple[StepRow, int, int]]:
        """Yield each step, the instant of its end on the device, and that of the step before."""
        ends = self.step_ends.tolist()
        yield from zip(self.rows, ends[1:], ends[:-1], strict=True)

    def arrows(self) -> Iterator[Arrows]:
        """Yield all but those to other ranks."""
        yield from self._on_host()
        yield from self._to_begins()
        yield Arrows.of(self.begins, self.ends, RUNS[self.work.kind], self._lengths(), self.rank, self.call)
        yield from self._to_step_ends()

    def _lengths(self) -> Ints:
        return self.work.end_at_ns - self.work.begin_at_ns

    def _on_host(self) -> Iterator[Arrows]:
        host = self.host
        instants = self.first + np.arange(len(host.at_ns))
        yield Arrows.of(instants[:-1], instants[1:], host.span[1:], host.own_ns[1:], self.rank)
        waits = np.flatnonzero(host.released_by != NONE)
        ends = self.ends[host.released_by[waits]]
        yield Arrows.of(ends, instants[waits], Span.ORDER, host.own_ns[waits], self.rank)

    def _to_begins(self) -> Iterator[Arrows]:
        """What work waits for: its launch, its stream, and other streams."""
        work, host = self.work, self.host
        instant = np.searchsorted(host.at_ns, work.begin_at_ns, side="right") - 1
        launched = np.where(host.launched_at != NONE, host.launched_at, instant)
        previous = before_on_stream(work)
        free = np.maximum(_at(host.at_ns, launched), _at(work.end_at_ns, previous))
        sources = (
            (launched, host.at_ns, self.first),
            *((one, work.end_at_ns, int(self.ends[0])) for one in (previous, waited_for(work, free), launched_before(work))),
        )
        causes = np.stack([_at(times, which) for which, times, _ in sources])
        delays = _delays(work.begin_at_ns - causes, causes, -NEVER if self.lacks_work else MOST_DELAY_NS)
        for (which, _, first), delay in zip(sources, delays, strict=True):
            known = which != NONE
            yield Arrows.of(first + which[known], self.begins[known], Span.DELAY, delay[known], self.rank)

    def _to_step_ends(self) -> Iterator[Arrows]:
        """A step's device time ends with the last work on each stream that it launched, and not before the step
        before."""
        ends = self.step_ends
        yield Arrows.of(ends[:-1], ends[1:], Span.ORDER, 0, self.rank)
        last: dict[tuple[int, int], int] = {}
        for position, key in enumerate(zip(self.step_of.tolist(), self.work.stream.tolist(), strict=True)):
            last[key] = position
        rows = [(step, position) for (step, _), position in last.items() if step != NONE]
        steps, works = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
        yield Arrows.of(self.ends[works], ends[1:][steps], Span.ORDER, 0, self.rank)


def _at(times: Ints, which: Ints) -> Ints:
    return np.where(which != NONE, np.append(times, NEVER)[which], NEVER)


def _delays(since: Ints, causes: Ints, most: int) -> Ints:
    """How long after each of its causes work began, by cause and work. After the last one it took what it took, up to
    `most`; after one that was over long before, as long as is usual after such a cause."""
    last = causes.argmax(axis=0)
    own = np.minimum(since.min(axis=0), most)
    found = np.empty_like(since)
    for cause in range(len(since)):
        binding = last == cause
        usual = int(np.median(own[binding])) if binding.any() else 0
        found[cause] = np.where(binding, own, np.minimum(since[cause], usual))
    return found


def _calls_of(work: DeviceWork, rows: Sequence[tuple[CollectiveRow, int]]) -> Ints:
    """By work: position of the collective that a communication kernel is a part of, NONE for none."""
    rows = sorted(rows, key=lambda row: row[0].exec_start_at_ns or 0)
    begins = np.array([row.exec_start_at_ns for row, _ in rows], np.int64)
    found = np.full(len(work.kind), NONE, np.int64)
    for one in np.flatnonzero(work.kind == Work.COMM).tolist():
        place = int(np.searchsorted(begins, work.begin_at_ns[one], side="right")) - 1
        if place >= 0:
            found[one] = rows[place][1]
    return found


def _meetings(result: Result, windows: Sequence[_Window], first: int) -> tuple[list[Arrows], Ints]:
    """Arrows of all collectives that ranks meet in, and the instants at which the last rank had come."""
    kernels: dict[tuple[int, int], list[tuple[_Window, int]]] = defaultdict(list)
    numbers = {position: key for position, key in enumerate(_executions(result))}
    for window in windows:
        for one in np.flatnonzero(window.call != NONE).tolist():
            kernels[numbers[int(window.call[one])]].append((window, one))
    arrows, at_ns = [], []
    for match in result.matches:
        parts = [kernels.get(key, []) for key in zip(match.ranks, match.seqs, strict=True)]
        if not family_of(match.op).ends_together or not all(parts) or match.last_start_at_ns >= match.first_end_at_ns:
            continue
        meeting = first + len(at_ns)
        came = [min((int(w.work.begin_at_ns[k]), int(w.begins[k])) for w, k in part) for part in parts]
        went = [max((int(w.work.end_at_ns[k]), int(w.ends[k]), int(w.call[k])) for w, k in part) for part in parts]
        at_ns.append(max(at for at, _ in came))
        for (at, instant), (end, left, call), rank in zip(came, went, match.ranks, strict=True):
            arrows.append((instant, meeting, Span.ORDER, 0, rank, NONE))
            arrows.append((meeting, left, Span.TRANSFER, max(end - at_ns[-1], 0), rank, call))
    columns = np.array(arrows, np.int64).reshape(-1, 6)
    source, target, span, ns, rank, call = columns.T
    return [Arrows(source, target, span.astype(np.uint8), ns, rank, call)], np.array(at_ns, np.int64)
