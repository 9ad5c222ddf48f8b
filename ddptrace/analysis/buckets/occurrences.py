"""Which communications carried which gradient bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from ddptrace.analysis.buckets.layouts import Calls, Layouts, PlannedLayout, Span
from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.intervals import Ints, innermost
from ddptrace.load.tables import HookCall, RankRun, Ready
from ddptrace.rows import row
from ddptrace.schema import Phase

Key = tuple[int, int]  # reducer, ordinal of the backward in the rank


@row
@dataclass(frozen=True, slots=True)
class Occurrence:
    """One bucket in one backward. `backward` is the ordinal in the rank; `comms` are in launch order, never none."""

    reducer: int
    layout: int
    index: int
    backward: int
    nbytes: int  # of the gradients, whatever went over the wire
    parameters: tuple[str, ...]
    first_ready_at_ns: int | None
    ready_at_ns: int | None
    hook: HookCall | None
    comms: tuple[Communication, ...]
    identity: str = "recorded"  # "order": see `by_order`

    @property
    def launch_at_ns(self) -> int:
        return self.comms[0].launch_at_ns


def backward_of(rank: RankRun, comms: Sequence[Communication]) -> list[int | None]:
    """The backward that each communication was launched in: told by its hook, else by time, on whatever thread."""
    marks = [m for m in rank.phases if m.phase is Phase.BACKWARD and m.backward is not None]
    pieces = innermost([(m.begin_at_ns, m.end_at_ns, m.backward) for m in marks if m.backward is not None])
    at = pieces.at(np.array([comm.launch_at_ns for comm in comms], np.int64)).tolist()
    return [comm.hook.backward if comm.hook else (k if k >= 0 else None) for comm, k in zip(comms, at, strict=True)]


def occurrences(
    rank: RankRun, comms: Sequence[Communication], backwards: Sequence[int | None]
) -> tuple[tuple[Occurrence, ...], tuple[Key, ...]]:
    """All bucket occurrences in launch order, and the (reducer, backward) whose communication fits no known layout.

    `backwards` is that of each communication, as `backward_of` gives it."""
    finder = _Finder(rank)
    for comm, backward in zip(comms, backwards, strict=True):
        finder.sort_in(comm, backward)
    found = [*finder.hooked(), *finder.native(), *finder.by_order(), *finder.unwatched()]
    found.sort(key=lambda occurrence: (occurrence.launch_at_ns, occurrence.comms[0].seq))
    return tuple(found), tuple(sorted(finder.unmatched))


class _Finder:
    """Takes the communications of one rank, then gives the occurrences: of hooks, which are told; of DDP's own calls,
    matched by order and size; of Python calls, which a hook registered before the trace may have made."""

    def __init__(self, rank: RankRun) -> None:
        self.unmatched: set[Key] = set()
        self._layouts = Layouts(rank)
        self._unknown = set() if rank.recorded else {one.reducer for one in rank.reducers if not one.parameters}
        self._ready = _ReadyTimes(rank)
        self._groups = {reducer.reducer: reducer.group for reducer in rank.reducers}
        self._by_hook: dict[int, list[Communication]] = defaultdict(list)
        self._native: dict[Key, list[Communication]] = defaultdict(list)
        self._python: dict[int, list[Communication]] = defaultdict(list)
        self._settled: set[Key] = set()

    def sort_in(self, comm: Communication, backward: int | None) -> None:
        if comm.hook is not None:
            self._by_hook[comm.hook.seq].append(comm)
            self._settled.add((comm.hook.reducer, comm.hook.backward))
        elif comm.call is not None and backward is not None:
            if not comm.call.is_native:
                self._python[backward].append(comm)
            elif comm.call.reducer is not None:
                self._native[comm.call.reducer, backward].append(comm)

    def hooked(self) -> Iterator[Occurrence]:
        for comms in self._by_hook.values():
            hook = comms[0].hook
            assert hook is not None
            plan = self._layouts.of_hook(hook)
            if plan is not None:
                yield self._occurrence((hook.reducer, hook.backward), plan, hook.index, comms, hook)
                continue
            self.unmatched.add((hook.reducer, hook.backward))
            told = hook.reducer, 0, hook.index, hook.backward, hook.nbytes
            yield Occurrence(*told, (), None, None, hook, tuple(comms))

    def native(self) -> Iterator[Occurrence]:
        before: dict[int, int] = {}  # the last backward that was synchronised
        for key, comms in sorted(self._native.items(), key=itemgetter(0)):
            reducer, backward = key
            since, before[reducer] = before.get(reducer, -1), backward
            if key in self._settled or reducer in self._unknown:  # beside hooks, what C++ sends is not gradients
                continue
            match = self._layouts.match(*key, comms)
            if match is None:
                match = self._layouts.match_used(*key, comms, self._ready.used(reducer, range(since + 1, backward + 1)))
            if match is None:
                self.unmatched.add(key)
            else:
                yield from self._settle(key, *match)

    def by_order(self) -> Iterator[Occurrence]:
        """Of a reducer that nothing recorded: the all-reduces of each backward are its buckets, one after another, and
        other sizes than in the backward before are another layout."""
        layout = dict.fromkeys(self._unknown, -1)
        before: dict[int, tuple[int, ...]] = {}
        for (reducer, backward), comms in sorted(self._native.items(), key=itemgetter(0)):
            sent = [(comm, comm.call) for comm in comms if comm.call and comm.call.op.startswith("all_reduce")]
            sizes = tuple(max(call.nbytes_in, call.nbytes_out) for _, call in sent)
            if reducer not in self._unknown or not sent:
                continue
            layout[reducer] += sizes != before.get(reducer)
            before[reducer] = sizes
            for index, (comm, _) in enumerate(sent):
                told = reducer, layout[reducer], index, backward, sizes[index]
                yield Occurrence(*told, (), None, None, None, (comm,), identity="order")

    def unwatched(self) -> Iterator[Occurrence]:
        for backward, comms in self._python.items():
            taken: set[int] = set()
            for reducer, group in self._groups.items():
                key = (reducer, backward)
                if key in self._settled or not self._ready.may_have(key):
                    continue
                rest = [c for c in comms if c.call and c.call.group == group and c.seq not in taken]
                match = self._layouts.match(*key, rest)
                if match is not None:
                    taken |= {comm.seq for comm in match[1].values()}
                    self.unmatched.discard(key)
                    yield from self._settle(key, *match)

    def _settle(self, key: Key, plan: PlannedLayout, calls: Calls) -> Iterator[Occurrence]:
        self._settled.add(key)
        return (self._occurrence(key, plan, index, [comm], None) for index, comm in calls.items())

    def _occurrence(
        self, key: Key, plan: PlannedLayout, index: int, comms: list[Communication], hook: HookCall | None
    ) -> Occurrence:
        first, last = self._ready.of(key, plan, index)
        sizes = plan.nbytes[index], plan.names[index]
        return Occurrence(key[0], plan.layout, index, key[1], *sizes, first, last, hook, tuple(comms))


class _ReadyTimes:
    """When the gradients of each bucket were accumulated."""

    def __init__(self, rank: RankRun) -> None:
        self._ready: dict[Key, Ready] = {(ready.reducer, ready.backward): ready for ready in rank.ready}
        self._spans: dict[tuple[Key, int], list[Span]] = {}

    def may_have(self, key: Key) -> bool:
        """Whether the reducer took part in the backward, as far as anything was seen."""
        return key in self._ready or not self._ready

    def used(self, reducer: int, backwards: range) -> Ints:
        """The parameters whose gradients were accumulated in these backwards, some more than once."""
        asked: Iterable[int] = backwards
        if len(backwards) > len(self._ready):  # damaged records may name the billionth backward
            asked = sorted(backward for one, backward in self._ready if one == reducer and backward in backwards)
        seen = [self._ready[reducer, backward].parameters for backward in asked if (reducer, backward) in self._ready]
        return np.concatenate([np.zeros(0, np.int64), *seen])

    def of(self, key: Key, plan: PlannedLayout, index: int) -> Span:
        ready = self._ready.get(key)
        if ready is None:
            return None, None
        spans = self._spans.get((key, plan.layout))
        if spans is None:
            spans = self._spans[key, plan.layout] = plan.ready_spans(ready)
        return spans[index]
