"""Which call a range of the backend's own thread belongs to, where no id says so.

Gloo records `gloo:all_reduce` and the like on its worker threads, without an id. Each group has its own threads, which
take its calls in the order of their launch, but two threads may stamp the begin of neighbouring calls in either order:

    launches    1 2 3
    thread A      ├──1──┤├────3────┤      1 and 2 may as well be exchanged, unless 2 was launched after A's first begin;
    thread B       ├─────2─────┤          3 was surely taken after both

So what fits is narrowed by launch, by the instant at which the call is known to have been over, by operation, by group,
and by the order in which threads were free. A call is linked where one range is left for it; what stays open is not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.ops import BY_NAME

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
