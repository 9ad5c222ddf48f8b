"""Finds which call each of Gloo's own ranges carried out, once a window's events are on the run's time.

    host     launch ├ddptrace#7┤                        ┌ went on (over by)
    backend               ├── gloo:all_reduce ──┬───────┼──────┤
                                    exec end = done stamp, on this thread, before the range's own end

The completion callbacks run inside the range, on Gloo's thread: ours first, then the user's, and each waits for the
interpreter first. So the range's own end can be milliseconds late, and the exec ends at the earliest proof of its end.

Gloo records `gloo:all_reduce` and the like on its worker threads, without an id. Each group has its own threads, which
take its calls in the order of their launch, but two threads may stamp the begin of neighbouring calls in either order:

    launches    1 2 3
    thread A      ├──1──┤├────3────┤      1 and 2 may as well be exchanged, unless 2 was launched after A's first begin;
    thread B       ├─────2─────┤          3 was surely taken after both

So the possible pairs are narrowed by launch, by the instant at which the call is known to have been over, by operation,
by group, and by the order in which threads were free. A call is linked if one range is left for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.events import Category, Ints, KinetoEvents
from ddptrace.load.tables import Call, ExecRange
from ddptrace.ops import BY_NAME
from ddptrace.schema import RANGE_PREFIX, Evidence

Matches = NDArray[np.bool_]

PREFIX: Final = "gloo:"


@dataclass(frozen=True, slots=True)
class BackendRange:
    """One range of the backend's own. `idle_since` is the end of the range before it on its thread."""

    event: int  # its index in the file's columns
    begin_at_ns: int
    end_at_ns: int
    name: str
    lane: int
    idle_since_ns: float


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call whose range is sought: it began after `launch` and before `over_by`."""

    seq: int
    op: str
    group: str
    launch_at_ns: int
    over_by_at_ns: float  # infinity where nothing is known
    lane: int | None  # the worker thread it ran on, where known


def in_thread_order(ranges: Iterable[tuple[int, int, int, str, int]]) -> list[BackendRange]:
    """From (begin, end, event, name, lane), sorted by begin."""
    idle: dict[int, float] = defaultdict(lambda: -math.inf)
    found = []
    for begin, end, event, name, lane in sorted(ranges):
        found.append(BackendRange(event, begin, end, name, lane, idle[lane]))
        idle[lane] = max(idle[lane], end)
    return found


def is_op(op: str, name: str) -> bool:
    """Whether a range of this name can carry out this operation, as far as is known."""
    known = gloo_ranges(op)
    return not known or name.removeprefix(PREFIX) in known


def gloo_ranges(op: str) -> tuple[str, ...]:
    """Gloo's names of the ranges in which it carries out an operation; none where that is not known."""
    return BY_NAME[op].gloo if op in BY_NAME else ()


def assign(
    calls: Sequence[OpenCall], ranges: Sequence[BackendRange], owners: Mapping[int, str]
) -> tuple[dict[int, BackendRange], list[int]]:
    """The ranges that certainly belong to a call, by seq, and the calls that have candidates but no certain one.

    `owners`: the group of each worker thread (lane) as far as it is known.
    """
    calls = sorted(calls, key=lambda call: call.seq)
    ranges = sorted(ranges, key=lambda one: one.begin_at_ns)
    fits = _fits(calls, ranges, owners)
    certain: dict[int, BackendRange] = {}
    doubtful: list[int] = []
    for some_calls, some_ranges in _connected(fits):
        theirs, candidates = [calls[i] for i in some_calls], [ranges[i] for i in some_ranges]
        sure = _sure(fits[np.ix_(some_calls, some_ranges)], theirs, candidates)
        certain |= {theirs[k].seq: candidates[i] for k, i in sure.items()}
        doubtful += [call.seq for k, call in enumerate(theirs) if k not in sure]
    return certain, doubtful


def _fits(calls: Sequence[OpenCall], ranges: Sequence[BackendRange], owners: Mapping[int, str]) -> Matches:
    """Shape (calls, ranges): whether the range can be the call's."""
    begin = np.array([range_.begin_at_ns for range_ in ranges], np.int64)
    known = {(op, name): is_op(op, name) for op in {c.op for c in calls} for name in {r.name for r in ranges}}
    fits = np.zeros((len(calls), len(ranges)), np.bool_)
    for i, call in enumerate(calls):
        in_time = (call.launch_at_ns <= begin) & (begin < call.over_by_at_ns)
        for j in np.flatnonzero(in_time).tolist():
            lane = ranges[j].lane
            may_own = owners.get(lane, call.group) == call.group and call.lane in (None, lane)
            fits[i, j] = may_own and known[call.op, ranges[j].name]
    return fits


def _connected(fits: Matches) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest sets in which no call fits a range of another set. Calls that fit nothing are in none."""
    rest = fits.any(axis=1)
    while rest.any():
        some_calls = np.arange(len(fits)) == rest.argmax()
        size = 0
        while size != some_calls.sum():
            size = some_calls.sum()
            some_ranges = fits[some_calls].any(axis=0)
            some_calls = fits[:, some_ranges].any(axis=1)
        rest &= ~some_calls
        yield np.flatnonzero(some_calls).tolist(), np.flatnonzero(some_ranges).tolist()


def _sure(fits: Matches, calls: Sequence[OpenCall], ranges: Sequence[BackendRange]) -> dict[int, int]:
    """The range of each call that can have one only, given that every range belongs to a call. None where counts differ
    or contradict each other."""
    if fits.shape[0] != fits.shape[1]:
        return {}
    open_pairs = fits & _in_order(ranges) if len({call.group for call in calls}) == 1 else fits.copy()
    sure: dict[int, int] = {}
    while new := {pair for pair in _singles(open_pairs) if pair not in sure.items()}:
        for call, one in new:
            open_pairs[call, :] = open_pairs[:, one] = False
            open_pairs[call, one] = True
        sure |= dict(new)
    whole = open_pairs.any(axis=0).all() and open_pairs.any(axis=1).all()
    return sure if whole else {}


def _in_order(ranges: Sequence[BackendRange]) -> Matches:
    """Shape (calls, ranges): whether the range can be the k-th that the group's threads took. A thread takes a call
    after its last range ended and before the next begins: a range that began before another's thread was free came
    first."""
    begin = np.array([range_.begin_at_ns for range_ in ranges])
    idle = np.array([range_.idle_since_ns for range_ in ranges])
    before = begin[:, None] < idle
    k = np.arange(len(ranges))[:, None]
    allowed: Matches = (before.sum(axis=0) <= k) & (k < len(ranges) - before.sum(axis=1))
    return allowed


def _singles(open_pairs: Matches) -> Iterator[tuple[int, int]]:
    """Pairs in which the call has no other range, or the range no other call."""
    alone = open_pairs & ((open_pairs.sum(axis=1, keepdims=True) == 1) | (open_pairs.sum(axis=0, keepdims=True) == 1))
    yield from ((call, one) for call, one in np.argwhere(alone).tolist())


# The ranges of one window ---------------------------------------------------------------------------------------------


Links = dict[int, BackendRange]  # by seq


class BackendLink:
    """`done_threads`: by seq, the system's id of the thread that stamped its completion. `over_by`: by seq, an instant
    at which the call is known to have been over."""

    def __init__(
        self, window: WindowEvents, calls: Sequence[Call], done_threads: Mapping[int, int], over_by: Mapping[int, int]
    ) -> None:
        self._window = window
        self._calls = calls
        self._over_by = over_by
        self._lanes = {lane.tid: i for i, lane in enumerate(window.events.lanes)}
        self._done_lane = {seq: self._lanes.get(str(thread), -1) for seq, thread in done_threads.items()}
        self._ranges = _backend_ranges(window)

    def execs(self) -> tuple[dict[int, ExecRange], list[int], int]:
        """Exec intervals by seq; the calls whose range cannot be told from another's; how many ranges are no call's."""
        links = self._by_id()
        stamped = self._by_stamp(links)
        links |= stamped
        found, doubtful = assign(self._open_calls(links), self._unclaimed(links), _owners(stamped, self._window))
        links |= found
        execs = {seq: self._exec(self._window.calls[seq], range_) for seq, range_ in links.items()}
        return execs, doubtful, len(self._unclaimed(links))

    def _by_id(self) -> Links:
        """Send and receive: their range is on the launching thread and begins inside the call's own."""
        issued_by = self._window.issued_by(np.array([range_.event for range_ in self._ranges], np.int64))
        pairs = [(issued_by[range_.event], range_) for range_ in self._ranges if range_.event in issued_by]
        return _one_to_one((seq, range_) for seq, range_ in pairs if is_op(self._window.calls[seq].op, range_.name))

    def _by_stamp(self, linked: Links) -> Links:
        """The range on the thread of the completion stamp that holds the stamp."""
        by_lane: dict[int, list[BackendRange]] = {}
        for range_ in self._unclaimed(linked):
            by_lane.setdefault(range_.lane, []).append(range_)
        begins = {lane: [one.begin_at_ns for one in ranges] for lane, ranges in by_lane.items()}
        pairs = []
        for call in self._calls:
            lane = self._done_lane.get(call.seq, -1)
            if call.seq in linked or call.done_at_ns is None or lane not in by_lane:
                continue
            range_ = by_lane[lane][int(np.searchsorted(begins[lane], call.done_at_ns, side="right")) - 1]
            if call.launch_at_ns <= range_.begin_at_ns <= call.done_at_ns < range_.end_at_ns and is_op(
                call.op, range_.name
            ):
                pairs.append((call.seq, range_))
        return _one_to_one(pairs)

    def _unclaimed(self, links: Links) -> list[BackendRange]:
        claimed = {range_.event for range_ in links.values()}
        return [range_ for range_ in self._ranges if range_.event not in claimed]

    def _open_calls(self, links: Links) -> list[OpenCall]:
        """The calls not linked that may have begun inside the window: a group takes its calls in order, so one is not
        open any more when a later one of its group was over before the window."""
        begins = self._window.events.begin_ns
        window_begin = int(begins[0]) if len(begins) else 0
        lanes = {range_.lane for range_ in self._ranges}
        passed: set[str] = set()
        found = []
        for call in sorted(self._calls, key=lambda call: -call.seq):
            over_by = self._known_over(call)
            if over_by <= window_begin:
                passed.add(call.group)
            if call.seq not in links and call.group not in passed:
                lane = self._done_lane.get(call.seq)
                if lane not in lanes or lane == self._lanes.get(str(call.thread)):  # over before anybody could ask
                    lane = None
                found.append(OpenCall(call.seq, call.op, call.group, call.launch_at_ns, over_by, lane))
        return found

    def _known_over(self, call: Call) -> float:
        done = math.inf if call.done_at_ns is None else call.done_at_ns
        return min(done, self._over_by.get(call.seq, math.inf))

    def _exec(self, call: Call, range_: BackendRange) -> ExecRange:
        over = self._known_over(call)
        end = int(min(range_.end_at_ns, over)) if over > range_.begin_at_ns else range_.end_at_ns
        lane = self._window.events.lanes[range_.lane]
        return ExecRange(range_.begin_at_ns, end, Evidence.BACKEND, range_.name, lane.name or f"thread {lane.tid}")


def _backend_ranges(window: WindowEvents) -> list[BackendRange]:
    events = window.events
    names = [i for i, name in enumerate(events.names) if name.startswith(PREFIX)]
    chosen = np.flatnonzero((events.category == Category.ANNOTATION) & np.isin(events.name, names)).tolist()
    return in_thread_order(
        (int(events.begin_ns[i]), int(events.end_ns[i]), i, window.name(i), int(events.lane[i])) for i in chosen
    )


def _one_to_one(pairs: Iterable[tuple[int, BackendRange]]) -> Links:
    """Pairs of which neither side is in another pair."""
    listed = list(pairs)
    calls = [seq for seq, _ in listed]
    ranges = [range_.event for _, range_ in listed]
    return {seq: range_ for seq, range_ in listed if calls.count(seq) == 1 and ranges.count(range_.event) == 1}


def _owners(stamped: Links, window: WindowEvents) -> dict[int, str]:
    """The group of each worker thread that carried out a call of one group only."""
    groups: dict[int, set[str]] = {}
    for seq, range_ in stamped.items():
        groups.setdefault(range_.lane, set()).add(window.calls[seq].group)
    return {lane: names.pop() for lane, names in groups.items() if len(names) == 1}


# A window's events on the run's time ----------------------------------------------------------------------------------


OwnRange = tuple[int, int, int]  # begin, end, seq


@dataclass(frozen=True)
class WindowEvents:
    """`begin_ns` and `end_ns` of `events` count from the run's zero here."""

    events: KinetoEvents
    calls: Mapping[int, Call]  # by seq

    @classmethod
    def of(cls, events: KinetoEvents, calls: Sequence[Call], unix_to_at: Callable[[Ints], Ints]) -> WindowEvents:
        at = unix_to_at(np.column_stack((events.begin_ns, events.end_ns)))  # at once, so that one offset holds for all
        moved = dataclasses.replace(events, begin_ns=at[:, 0], end_ns=at[:, 1])
        return cls(moved, {call.seq: call for call in calls})

    def name(self, event: int) -> str:
        return self.events.names[int(self.events.name[event])]

    def issued_by(self, chosen: Ints) -> dict[int, int]:
        """Return, for each chosen event that begins inside a call's range on the same thread, the seq of that call."""
        found: dict[int, int] = {}
        for lane, ranges in self._own_ranges.items():
            mine = chosen[self.events.lane[chosen] == lane]
            last = np.searchsorted([begin for begin, _, _ in ranges], self.events.begin_ns[mine], side="right") - 1
            for event, k in zip(mine.tolist(), last.tolist(), strict=True):
                if k >= 0 and self.events.begin_ns[event] < ranges[k][1]:
                    found[event] = ranges[k][2]
        return found

    def started_with(self, seq: int) -> tuple[int, ...]:
        """Return the seqs of calls that the backend started together; `seq` is that of the innermost range."""
        return self._batches.get(seq, (seq,))

    @cached_property
    def _batches(self) -> dict[int, tuple[int, ...]]:
        """By the seq of a range within others: the seqs of all of these."""
        found: dict[int, tuple[int, ...]] = {}
        for ranges in self._own_ranges.values():
            around: list[OwnRange] = []
            for one in ranges:
                around = [other for other in around if other[1] > one[0]] + [one]
                if len(around) > 1:
                    found[one[2]] = tuple(seq for _, _, seq in around)
        return found

    @cached_property
    def _own_ranges(self) -> dict[int, list[OwnRange]]:
        """By lane, the ranges that carry the seq of a recorded call, in order of their begin."""
        seqs = {i: int(text) for i, name in enumerate(self.events.names) if (text := _seq_text(name)).isdecimal()}
        found: dict[int, list[OwnRange]] = {}
        for event in np.flatnonzero(np.isin(self.events.name, list(seqs))).tolist():
            seq = seqs[int(self.events.name[event])]
            if seq in self.calls:
                span = (int(self.events.begin_ns[event]), int(self.events.end_ns[event]), seq)
                found.setdefault(int(self.events.lane[event]), []).append(span)
        return found


def _seq_text(name: str) -> str:
    return name.removeprefix(RANGE_PREFIX) if name.startswith(RANGE_PREFIX) else ""
