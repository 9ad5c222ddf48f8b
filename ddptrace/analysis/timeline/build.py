"""The graph of a whole result: every profiler window of every rank, joined where ranks communicate.

host     ├ launch ┤      ├ launch ┤          Span.HOST between calls, Span.ORDER after what the host waited for
stream      └delay►├ kernel ┤─delay►├ k ┤    Span.DELAY after the launch, the stream's own order and other streams
rank 0                      ├ all-reduce ┤
rank 1                   ├──── all-reduce ┤  Span.TRANSFER after the last rank has come
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints, clip, total, union
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.timeline.graph import Arrows, Graph, Span, graph_of
from ddptrace.analysis.timeline.rank_window import NONE, Host, before_on_stream, host_of, launched_before, waited_for
from ddptrace.errors import DdptraceError
from ddptrace.load.tables import DeviceWork, HostCalls, Work
from ddptrace.ops import family_of

MOST_DELAY_NS: Final = 20_000
"""Work that begins later after all that it is known to wait for waits for something that is not known: the rest of its
delay is not played. It is where a file may lack work, as it often lacks kernels of CUDA graphs."""
RUNS: Final = np.array([Span.COMPUTE, Span.TRANSFER, Span.MEMORY], np.uint8)
"""By Work."""
NEVER: Final = -(2**61)
EXECUTION: Final = ("exec_start_at_ns", "exec_end_at_ns")
FOREVER: Final = 2**61


@dataclass(frozen=True, slots=True)
class StepEnd:
    """One step of one rank."""

    row: StepRow
    instant: int  # the device had done what the step launched
    before: int  # the same of the step before, or when the device time of the first step began


@dataclass(frozen=True, slots=True)
class Timeline:
    """`works`: begin and end of all device work, the kind of Work and the rank, shape (n, 4). `calls`: collectives that
    arrows of the graph belong to."""

    graph: Graph
    steps: tuple[StepEnd, ...]
    works: Ints
    calls: tuple[CollectiveRow, ...]
    meetings: int  # collectives in which ranks meet
    lacks_work: bool  # files may lack kernels of CUDA graphs
    unexplained_ns: int  # for so long some work waited for what is not known, and that is not played


def timeline_of(result: Result) -> Timeline:
    """Build the graph of all profiler windows in which a device worked.

    Raises:
        DdptraceError: There is no such window, or the collectives of the ranks contradict each other.
    """
    calls = _executions(result)
    first, windows = 0, []
    for activity in result.activity:
        mine = [row for row in result.steps if row.rank == activity.rank and row.profiled]
        for work, held in zip(activity.device, activity.host_calls, strict=True):
            windows.append(_Window.of(activity.rank, work, held, mine, calls, first))
            first += windows[-1].count
    if not windows:
        raise DdptraceError("no profiler window shows what the device did: record the run with --profile")
    meetings = _meetings(result, windows)
    shortest = np.full(len(calls) + 1, FOREVER)
    for met in meetings:
        shortest[list(met.calls)] = met.transfer_ns
    arrows = [arrows for window in windows for arrows in window.arrows(shortest)]
    arrows += [met.arrows(first + nth) for nth, met in enumerate(meetings)]
    met_at = np.array([met.at_ns for met in meetings], np.int64)
    graph, number = graph_of(np.concatenate([*(window.at_ns() for window in windows), met_at]), arrows)
    return Timeline(
        graph,
        tuple(step for window in windows for step in window.steps(number)),
        np.concatenate([window.works(number) for window in windows]),
        tuple(calls.values()),
        len(meetings),
        any(window.lacks_work for window in windows),
        sum(window.unexplained_ns for window in windows),
    )


def _executions(result: Result) -> dict[tuple[int, int], CollectiveRow]:
    """By rank and seq: each call whose execution is known, from its begin to its last end."""
    found: dict[tuple[int, int], CollectiveRow] = {}
    for row in result.collectives:
        key = row.rank, row.seq
        if row.exec_start_at_ns is not None:
            found[key] = replace(found[key], exec_end_at_ns=row.exec_end_at_ns) if key in found else row
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
        mine = [(row, position) for position, row in enumerate(calls.values()) if row.rank == rank]
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

    def steps(self, number: Ints) -> Iterator[StepEnd]:
        """Yield the steps, with the new numbers of their instants."""
        ends = number[self.step_ends].tolist()
        for row, end, before in zip(self.rows, ends[1:], ends[:-1], strict=True):
            yield StepEnd(row, end, before)

    def works(self, number: Ints) -> Ints:
        """As in `Timeline`."""
        ranks = np.full(len(self.work.kind), self.rank)
        return np.column_stack((number[self.begins], number[self.ends], self.work.kind, ranks))

    def arrows(self, shortest: Ints) -> Iterator[Arrows]:
        """Yield all but those to other ranks. `shortest`: by collective, what its transfer alone takes at most."""
        lengths = np.minimum(self.work.end_at_ns - self.work.begin_at_ns, shortest[self.call])
        yield from self._on_host()
        yield from self._to_begins()
        yield Arrows.of(self.begins, self.ends, RUNS[self.work.kind], lengths, self.rank, self.call)
        yield from self._to_step_ends()

    def _on_host(self) -> Iterator[Arrows]:
        host = self.host
        instants = self.first + np.arange(len(host.at_ns))
        yield Arrows.of(instants[:-1], instants[1:], host.span[1:], host.own_ns[1:], self.rank)
        waits = np.flatnonzero(host.released_by != NONE)
        ends = self.ends[host.released_by[waits]]
        yield Arrows.of(ends, instants[waits], Span.ORDER, host.own_ns[waits], self.rank)

    @property
    def unexplained_ns(self) -> int:
        """For how long any work waited with a delay that is not played, within the steps."""
        if self.lacks_work:
            return 0
        latest = np.stack([_at(times, which) for which, times, _ in self._causes()]).max(axis=0)
        late = (latest > NEVER) & (self.work.begin_at_ns - latest > MOST_DELAY_NS)
        waits = union(np.column_stack((latest + MOST_DELAY_NS, self.work.begin_at_ns))[late])
        ends = self._step_ends_ns()
        return total(clip(waits, int(ends[0]), int(ends[-1])))

    def _to_begins(self) -> Iterator[Arrows]:
        sources = self._causes()
        causes = np.stack([_at(times, which) for which, times, _ in sources])
        most = FOREVER if self.lacks_work else MOST_DELAY_NS
        delays = _delays(self.work.begin_at_ns - causes, causes, most)
        for (which, _, first), delay in zip(sources, delays, strict=True):
            known = which != NONE
            yield Arrows.of(first + which[known], self.begins[known], Span.DELAY, delay[known], self.rank)

    def _causes(self) -> tuple[tuple[Ints, Ints, int], ...]:
        """What work waits for: its launch, its stream, and other streams. Of each kind: by work, which instant; when
        these are; the number of the first."""
        work, host = self.work, self.host
        instant = np.searchsorted(host.at_ns, work.begin_at_ns, side="right") - 1
        launched = np.where(host.launched_at != NONE, host.launched_at, instant)
        previous = before_on_stream(work)
        free = np.maximum(_at(host.at_ns, launched), _at(work.end_at_ns, previous))
        others = (previous, waited_for(work, free), launched_before(work))
        first_end = int(self.ends[0])
        return (launched, host.at_ns, self.first), *((one, work.end_at_ns, first_end) for one in others)

    def _to_step_ends(self) -> Iterator[Arrows]:
        """A step's device time ends with the last work on each stream that it launched, and not before the step
        before."""
        ends = self.step_ends
        yield Arrows.of(ends[:-1], ends[1:], Span.ORDER, 0, self.rank)
        yield self._to_first_begin()
        keys = zip(self.step_of.tolist(), self.work.stream.tolist(), strict=True)
        last = {key: position for position, key in enumerate(keys)}
        rows = [(step, position) for (step, _), position in last.items() if step != NONE]
        steps, works = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
        yield Arrows.of(self.ends[works], ends[1:][steps], Span.ORDER, 0, self.rank)

    def _to_first_begin(self) -> Arrows:
        """The first step's device time begins as the work before it ends, where the file has that work; events may
        have told when that was."""
        after_ns = self._step_ends_ns()[0] - self.work.end_at_ns
        near = np.flatnonzero((self.step_of == NONE) & (np.abs(after_ns) <= MOST_DELAY_NS))
        before = near[np.argmax(self.work.end_at_ns[near])] if len(near) else near
        last = np.atleast_1d(before)
        return Arrows.of(
            self.ends[last], np.repeat(self.step_ends[:1], len(last)), Span.DELAY, after_ns[last], self.rank
        )


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
    """By work: position of the collective that a communication kernel is a part of, the latest begun that still runs;
    NONE for none."""
    rows = sorted(rows, key=lambda row: row[0].exec_start_at_ns or 0)
    begins, ends = (np.array([getattr(row, name) for row, _ in rows], np.int64) for name in EXECUTION)
    reach = np.maximum.accumulate(ends)
    found = np.full(len(work.kind), NONE, np.int64)
    for one in np.flatnonzero(work.kind == Work.COMM).tolist():
        at = int(work.begin_at_ns[one])
        place = int(np.searchsorted(begins, at, side="right")) - 1
        while place >= 0 and ends[place] <= at < reach[place]:
            place -= 1
        if place >= 0 and at < max(ends[place], begins[place] + 1):
            found[one] = rows[place][1]
    return found


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A collective in which ranks meet. Columns are by rank."""

    at_ns: int  # the last rank had come
    transfer_ns: int
    ranks: tuple[int, ...]
    came: tuple[int, ...]  # instants: its first kernel began
    left: tuple[int, ...]  # instants: its last kernel ended
    left_at_ns: tuple[int, ...]
    calls: tuple[int, ...]

    def arrows(self, instant: int) -> Arrows:
        """`instant`: number of the one at which the last rank had come."""
        here, ranks = np.full(len(self.ranks), instant), np.array(self.ranks)
        moved = np.maximum(np.array(self.left_at_ns) - self.at_ns, 0)
        return Arrows(
            np.concatenate((self.came, here)),
            np.concatenate((here, self.left)),
            np.repeat(np.array([Span.ARRIVAL, Span.TRANSFER], np.uint8), len(here)),
            np.concatenate((np.zeros_like(here), moved)),
            np.concatenate((ranks, ranks)),
            np.concatenate((np.full_like(here, NONE), self.calls)),
        )


def _meetings(result: Result, windows: Sequence[_Window]) -> list[_Meeting]:
    """Those whose kernels are known on all ranks that the files show, and run at once on the clocks as aligned."""
    keys = list(_executions(result))
    kernels: dict[tuple[int, int], list[tuple[_Window, int]]] = defaultdict(list)
    for window in windows:
        for one in np.flatnonzero(window.call != NONE).tolist():
            kernels[keys[int(window.call[one])]].append((window, one))
    found = []
    for match in result.matches:
        parts = [kernels.get(key, []) for key in zip(match.ranks, match.seqs, strict=True)]
        if family_of(match.op).ends_together and all(parts) and match.last_start_at_ns < match.first_end_at_ns:
            found.append(_meeting(match, parts))
    return found


def _meeting(match: MatchRow, parts: Sequence[Sequence[tuple[_Window, int]]]) -> _Meeting:
    """`parts`: by rank, the kernels."""
    came = [min((int(of.work.begin_at_ns[one]), int(of.begins[one])) for of, one in part) for part in parts]
    left = [
        max((int(of.work.end_at_ns[one]), int(of.ends[one]), int(of.call[one])) for of, one in part) for part in parts
    ]
    ends, instants, calls = zip(*left, strict=True)
    begins, firsts = zip(*came, strict=True)
    return _Meeting(max(begins), match.transfer_ns, match.ranks, firsts, instants, ends, calls)
