"""Which call each of Gloo's own ranges in a window carried out, and when it was over.

    host     launch ├ddptrace#7┤                        ┌ went on (over by)
    backend               ├── gloo:all_reduce ──┬───────┼──────┤
                                    exec end = done stamp, on this thread, before the range's own end

The completion callbacks run inside the range, on Gloo's thread: ours first, then the user's, and each waits for the
interpreter first. So the range's own end can be milliseconds late, and the exec ends at the earliest proof of its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ddptrace.load.kineto.events import Category
from ddptrace.load.tables import Call, ExecRange
from ddptrace.load.windows.backend_ranges import PREFIX, BackendRange, OpenCall, assign, in_thread_order, is_op
from ddptrace.load.windows.events import WindowEvents
from ddptrace.schema import Evidence

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
