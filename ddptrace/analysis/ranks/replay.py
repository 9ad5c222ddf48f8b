"""The run played again: the ranks' own times and the transfers, with nobody waiting longer than for these.

launch    t += own;  the collective's last arrival = max(itself, t)
arrived   end = max(last arrival, end of the one it queued behind) + transfer
wait      t = max(t + own, end) + what it took to go on
step end  its length = t - that of the step before

Played with nothing changed it gives the measured steps back. It is played once for many cases: `t` and all that comes
of it are columns, the first of them the run as it was.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.ranks.crossings import NONE, Crossings, begins_of
from ddptrace.analysis.ranks.trail import NO_SEQ
from ddptrace.analysis.tables.ranks import LAUNCH, STEP_END, WAIT, Trail

_GAP: Final = 3  # a wait for nothing, beside the kinds of `Trail`
_CHUNK: Final = 4096  # events of a trail that are unpacked at a time

_Event = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Change:
    """What one rank would have done faster: ns to be added to its events' own times, shape (events, cases), in the
    columns from `first` on."""

    first: int
    ns: Ints


def play(
    trails: Sequence[Trail],
    crossings: Crossings,
    steps: Ints,
    cases: int,
    changes: dict[int, Change],
    transfer_ns: Ints,
) -> NDArray[np.int64]:
    """Lengths of `steps`, which all trails have, added over the trails: shape (steps, 1 + cases). `changes`: by
    position of the trail. A step that is not reached by all, since their calls part before it, has length 0."""
    replay = _Replay(crossings, _users(trails, crossings), transfer_ns, len(steps), cases)
    lives = [
        replay.life(trail, _events(trail, crossings, crossings.of_events[at], steps), changes.get(at))
        for at, trail in enumerate(trails)
    ]
    replay.run(lives)
    return np.where(replay.reached[:, None] == len(trails), replay.lengths, 0)


def left_over(trail: Trail, crossings: Crossings, crosses: Ints) -> Ints:
    """By event, what a wait took longer than from its begin until the collective's end; less than nothing where it
    ended before that. All of it where that is not known."""
    ends = np.append(crossings.end_at_ns, np.iinfo(np.int64).min)[crosses]
    from_ns: Ints = np.maximum(begins_of(trail), ends)
    return trail.at_ns - from_ns


class _Replay:
    """Ranks go on until they have to wait for what has not all its arrivals: any order gives the same times."""

    def __init__(self, crossings: Crossings, users: list[int], transfer_ns: Ints, steps: int, cases: int) -> None:
        self.lengths = np.zeros((steps, 1 + cases), np.int64)
        self.reached = np.zeros(steps, np.int64)
        self._before, self._behind = crossings.before, _behind(crossings)
        self._transfers = transfer_ns
        self._missing = (crossings.needed + (crossings.before != NONE)).tolist()
        self._users = users
        self._arrivals: dict[int, Ints] = {}
        self._ends: dict[int, Ints] = {}
        self._blocked: defaultdict[int, list[Iterator[int]]] = defaultdict(list)
        self._ready: deque[Iterator[int]] = deque()

    def run(self, lives: Sequence[Iterator[int]]) -> None:
        self._ready.extend(lives)
        while self._ready:
            life = self._ready.popleft()
            crossing = next(life, NONE)
            if crossing != NONE:
                self._blocked[crossing].append(life)

    def life(self, trail: Trail, events: Iterator[_Event], change: Change | None) -> Iterator[int]:
        """One rank's. Gives each collective that it has to wait for and that has not ended."""
        now = np.full(self.lengths.shape[1], trail.at_ns[0], np.int64)
        stepped = now.copy()
        for at, (kind, own_ns, crossing, after_ns, step) in enumerate(events):
            if kind == WAIT and crossing != NONE and crossing not in self._ends:
                yield crossing
            now += own_ns
            if change is not None:
                now[change.first : change.first + change.ns.shape[1]] += change.ns[at]
            if kind == LAUNCH and crossing != NONE:
                self._arrive(crossing, now)
            elif kind == STEP_END:
                self._end_step(step, now - stepped)
            elif kind != LAUNCH:
                self._wait(crossing, now)
                now += after_ns
            if kind >= STEP_END:
                stepped[:] = now

    def _arrive(self, crossing: int, now: Ints) -> None:
        if crossing in self._arrivals:
            np.maximum(self._arrivals[crossing], now, out=self._arrivals[crossing])
        else:
            self._arrivals[crossing] = now.copy()
        self._missing[crossing] -= 1
        while crossing != NONE and not self._missing[crossing]:
            self._end(crossing)
            crossing = self._behind.get(crossing, NONE)

    def _end(self, crossing: int) -> None:
        """All that it needs is there; it is one thing less that is missing to the one behind it."""
        end, before = self._arrivals.pop(crossing), int(self._before[crossing])
        if before != NONE:
            np.maximum(end, self._ends[before], out=end)
            self._used(before)
        end += self._transfers[crossing]
        if self._users[crossing]:
            self._ends[crossing] = end
        if crossing in self._behind:
            self._missing[self._behind[crossing]] -= 1
        self._ready.extend(self._blocked.pop(crossing, ()))

    def _used(self, crossing: int) -> None:
        """An end that nobody will ask for again is let go."""
        self._users[crossing] -= 1
        if not self._users[crossing]:
            del self._ends[crossing]

    def _wait(self, crossing: int, now: Ints) -> None:
        if crossing != NONE:
            np.maximum(now, self._ends[crossing], out=now)
            self._used(crossing)

    def _end_step(self, step: int, length: Ints) -> None:
        if step != NONE:
            self.lengths[step] += length
            self.reached[step] += 1


def _events(trail: Trail, crossings: Crossings, crosses: Ints, steps: Ints) -> Iterator[_Event]:
    """Kind, own time, collective, what a wait took beyond that, and the position in `steps`, -1 where it is none."""
    kinds = np.where((trail.kind == WAIT) & (trail.seq == NO_SEQ), _GAP, trail.kind)
    after, own = left_over(trail, crossings, crosses), trail.local_ns.sum(axis=1)
    columns = np.column_stack((kinds, own, crosses, after, positions(trail.step, steps)))
    for first in range(0, len(columns), _CHUNK):
        yield from map(tuple, columns[first : first + _CHUNK].tolist())


def positions(wanted: Ints, steps: Ints) -> Ints:
    """Where each is in `steps`, which are sorted; -1 where it is not."""
    if not len(steps):
        return np.full(len(wanted), NONE, np.int64)
    at = np.minimum(np.searchsorted(steps, wanted), len(steps) - 1)
    return np.where(steps[at] == wanted, at, NONE)


def _behind(crossings: Crossings) -> dict[int, int]:
    """What queues behind each."""
    followers = np.flatnonzero(crossings.before != NONE)
    return dict(zip(crossings.before[followers].tolist(), followers.tolist(), strict=True))


def _users(trails: Sequence[Trail], crossings: Crossings) -> list[int]:
    """How often the end of each is asked for: by waits, and by the one behind it."""
    count = np.zeros(len(crossings.before), np.int64)
    count[crossings.before[crossings.before != NONE]] += 1
    for trail, crosses in zip(trails, crossings.of_events, strict=True):
        np.add.at(count, crosses[(trail.kind == WAIT) & (crosses != NONE)], 1)
    users: list[int] = count.tolist()
    return users
