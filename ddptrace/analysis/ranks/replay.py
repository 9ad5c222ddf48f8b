"""Plays the run again: with nothing changed, with one rank as fast as the others, and with faster transfers.

launch    t += own;  the collective's last arrival = max(itself, t)
arrived   end = max(last arrival, end of the one it queued behind) + transfer
wait      t = max(t + own, end) + what it took to go on
step end  its length = t - that of the step before

Played with nothing changed it gives the measured steps back. It is played once for many cases: `t` and all that comes
of it are columns, the first of them the run as it was.

What a rank costs the run is what it wins where that rank's own time is as the other ranks have it:

own time of rank 1, by step      10 10 20 10     sorted  10 10 10 20
that of the other ranks           9 10 11 10     sorted   9 10 10 11
played with                       9 10 11 10     the value of the same rank order: its excess goes, the noise stays

That for each phase, and for each part of a step between two launches by itself, so that what is late in one part is not
taken off another. Cutting each step to what the others have in it would take the noise away too, and call that a cost.
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
from ddptrace.analysis.tables.ranks import LAUNCH, LOCAL_PHASES, STEP_END, WAIT, Trail

_GAP: Final = 3  # a wait for nothing, beside the kinds of `Trail`
_CHUNK: Final = 4096  # events of a trail that are unpacked at a time

_Event = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Change:
    """What one rank would have done faster: ns to be added to its events' own times, shape (events, cases), in the
    columns from `first` on."""

    first: int
    ns: Ints


def _play(
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


def _left_over(trail: Trail, crossings: Crossings, crosses: Ints) -> Ints:
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
    after, own = _left_over(trail, crossings, crosses), trail.local_ns.sum(axis=1)
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


# What each rank costs the run -----------------------------------------------------------------------------------------


MOST_RANKS: Final = 16
"""So many ranks are asked after: those with most time of their own beyond the others'."""
ALL: Final = "all"
QUESTIONS: Final = (*LOCAL_PHASES, ALL)
"""What of a rank is played as the others have it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """`step_ns`: mean length of each step over the ranks, shape (steps,). Of each rank asked after `cost_ns`, what the
    steps were shorter by, and `excess_ns` of its own time over the others' median: shape (ranks, questions, steps)."""

    steps: Ints
    step_ns: Ints
    ranks: tuple[int, ...]  # positions of their trails
    cost_ns: Ints
    excess_ns: Ints

    @property
    def typical_ns(self) -> float:
        return float(np.median(self.step_ns))


def costs_of(trails: Sequence[Trail], crossings: Crossings, steps: Ints) -> Costs:
    """Over `steps`, which all trails have."""
    excess = _excess(np.stack([own_time(trail, steps) for trail in trails]))
    asked = tuple(sorted(np.argsort(-excess[:, -1].mean(axis=1), kind="stable")[:MOST_RANKS].tolist()))
    width = len(QUESTIONS)
    changes = _changes(trails, parts_of(trails, crossings, steps), asked, steps)
    lengths = _play(trails, crossings, steps, width * len(asked), changes, crossings.transfer_ns)
    saved = lengths[:, :1] - lengths[:, 1:]
    costs = _mean(saved, len(trails)).T.reshape(len(asked), width, len(steps))
    return Costs(steps, _mean(lengths[:, 0], len(trails)), asked, costs, excess[list(asked)])


def cost_of_slower_transfers(
    trails: Sequence[Trail], crossings: Crossings, steps: Ints, faster: Sequence[Ints]
) -> list[Ints]:
    """What each step was shorter by, had the transfers taken these times; each of shape (steps,)."""
    as_it_was, *played = (
        _play(trails, crossings, steps, 0, {}, transfer)[:, 0] for transfer in (crossings.transfer_ns, *faster)
    )
    return [_mean(as_it_was - one, len(trails)) for one in played]


def disorder_ratio(trails: Sequence[Trail], crossings: Crossings) -> float:
    """Time by which waits ended before all had arrived, which cannot be, as a share of the ranks' time: how far the
    trails are from one time line."""
    early = whole = 0
    for trail, crosses in zip(trails, crossings.of_events, strict=True):
        waits = (trail.kind == WAIT) & (crosses >= 0)
        early += int(-np.minimum(_left_over(trail, crossings, crosses)[waits], 0).sum())
        whole += int(trail.at_ns[-1]) - int(trail.at_ns[0])
    return early / whole if whole else 0.0


def common_steps(trails: Sequence[Trail]) -> Ints:
    """Ordinals of the steps whose end all trails have, in order."""
    ended = [trail.step[trail.kind == STEP_END] for trail in trails]
    common = ended[0] if ended else np.zeros(0, np.int64)
    for one in ended[1:]:
        common = np.intersect1d(common, one)
    return np.unique(common)


def step_lengths(trail: Trail, steps: Ints) -> Ints:
    """As they were measured: shape (steps,)."""
    edges = np.flatnonzero((trail.kind == STEP_END) | ((trail.kind == WAIT) & (trail.seq == NO_SEQ)))
    ends = edges[1:][trail.kind[edges[1:]] == STEP_END]
    lengths = np.diff(trail.at_ns[edges])[trail.kind[edges[1:]] == STEP_END]
    at = positions(trail.step[ends], steps)
    measured: Ints = np.zeros(len(steps) + 1, np.int64)
    measured[at] = lengths
    return measured[:-1]


def own_time(trail: Trail, steps: Ints) -> Ints:
    """The rank's own ns in each step, by phase: shape (phases, steps)."""
    at = positions(trail.step, steps)
    table = np.zeros((len(steps) + 1, len(LOCAL_PHASES)), np.int64)
    np.add.at(table, at, trail.local_ns)
    return table[:-1].T.copy()


def _excess(own: Ints) -> Ints:
    """Of each rank, over the others' median, by question and step; `own` has shape (ranks, phases, steps)."""
    asked = np.concatenate((own, own.sum(axis=1, keepdims=True)), axis=1)
    others = np.stack([np.median(np.delete(asked, rank, axis=0), axis=0) for rank in range(len(asked))])
    excess: Ints = np.rint(asked - others).astype(np.int64)
    return excess


def _changes(trails: Sequence[Trail], parts: Sequence[Ints], asked: Sequence[int], steps: Ints) -> dict[int, Change]:
    """What each event of the trails that are asked after takes more or less in each case. `parts`: by trail, the part
    of the step that its events lie in; a part's phases are mapped each by itself, and the events in it scale alike."""
    tables, changes = _by_part(trails, parts, steps), {}
    for case, rank in enumerate(asked):
        ratios = _ratios(tables, rank).reshape(-1, len(LOCAL_PHASES), len(steps) + 1)
        ratio = ratios[parts[rank], :, positions(trails[rank].step, steps)]
        columns = np.rint(trails[rank].local_ns * (ratio - 1.0)).astype(np.int64)
        changes[rank] = Change(1 + case * len(QUESTIONS), np.column_stack((columns, columns.sum(axis=1))))
    return changes


def _by_part(trails: Sequence[Trail], parts: Sequence[Ints], steps: Ints) -> Ints:
    """Own time of each rank, shape (ranks, parts x phases, steps)."""
    count, phases = 1 + max(int(part.max(initial=0)) for part in parts), len(LOCAL_PHASES)
    table = np.zeros((len(trails), count, len(steps) + 1, phases), np.int64)
    for rank, (trail, part) in enumerate(zip(trails, parts, strict=True)):
        np.add.at(table[rank], (part, positions(trail.step, steps)), trail.local_ns)
    return table[:, :, :-1].transpose(0, 1, 3, 2).reshape(len(trails), count * phases, len(steps))


def _ratios(tables: Ints, rank: int) -> NDArray[np.float64]:
    """What a rank's time is mapped to, as a share of it: shape (parts x phases, steps + 1), 1 outside the steps."""
    own, others = tables[rank], np.delete(tables, rank, axis=0).swapaxes(0, 1)
    wanted = np.stack([_mapped(had, theirs.ravel()) for had, theirs in zip(own, others, strict=True)])
    return np.column_stack((np.where(own > 0, wanted / np.maximum(own, 1), 1.0), np.ones(len(own))))


def _mapped(own: Ints, others: Ints) -> Ints:
    """For each of a rank's values, that of the same quantile among the others'."""
    if not own.any():
        return own
    order = np.argsort(np.argsort(own, kind="stable"), kind="stable")
    return np.sort(others)[((order + 0.5) / len(own) * len(others)).astype(np.int64)]


def _mean(total: Ints, ranks: int) -> Ints:
    return np.rint(total / ranks).astype(np.int64)


# Parts of a step ------------------------------------------------------------------------------------------------------


MOST_PARTS: Final = 64
"""Of a step with more launches several make one part."""


def parts_of(trails: Sequence[Trail], crossings: Crossings, steps: Ints) -> list[Ints]:
    """By trail, the part of its step that each event ends. All are one part where ranks launch unlike many."""
    launches = [
        (trail.kind == LAUNCH) & (crosses != NONE) for trail, crosses in zip(trails, crossings.of_events, strict=True)
    ]
    counts = [_counts_per_step(trail, one, steps) for trail, one in zip(trails, launches, strict=True)]
    if any((count != counts[0]).any() for count in counts):
        return [np.zeros(len(trail.step), np.int64) for trail in trails]
    return [_part_of_events(trail, one, counts[0], steps) for trail, one in zip(trails, launches, strict=True)]


def _counts_per_step(trail: Trail, which: NDArray[np.bool_], steps: Ints) -> Ints:
    count: Ints = np.zeros(len(steps) + 1, np.int64)
    np.add.at(count, positions(trail.step[which], steps), 1)
    return count[:-1]


def _part_of_events(trail: Trail, launches: NDArray[np.bool_], count: Ints, steps: Ints) -> Ints:
    """So many of its step's launches lie before each event; fewer where these are more than there are parts."""
    before: Ints = np.cumsum(launches) - launches
    at = positions(trail.step, steps)
    first = np.full(len(steps) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, at, before)
    several = np.append(-(-(count + 1) // MOST_PARTS), 1)
    return np.where(at == NONE, 0, (before - first[at]) // several[at])
