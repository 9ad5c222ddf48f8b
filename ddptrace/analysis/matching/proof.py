"""Whether the k-th collective of a group on one rank is the k-th on another: what speaks against it.

Ranks end a collective together and start it apart, so the ends tell:

rank 0    [=======)     [==)      [====)
rank 1       [====)  [=====)        [==)        right: the ends agree
rank 2                  [==)  [========)  [==)  one too few before: they do not

One line through the differences of their ends takes wrong clocks off. In the wrong order the ends lie on a line too
where the collectives come at even intervals:

even      |    |    |    |    |          shifted by one they fit as well: nothing is proved
uneven    | |      |   |         |       they fit in one order only, whatever the clocks say
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.matching.calls import GroupCall, differ
from ddptrace.ops import family_of
from ddptrace.units import duration

MOST: Final = 0.9
"""So many of a group's collectives must fit; a few may not (a late stamp, a rank that was stopped in between)."""
TOLERANCE_NS: Final = (1_000_000, 10_000_000)
"""How far apart ranks may end one collective: half the time between two of them, within these bounds. On real sets of 8
ranks the ends agree to 2 to 30 us (median), and on CPU a busy core adds milliseconds; where events were sampled by each
rank on its own, every second pair of ends is further apart than 10 ms."""
TOLERANCE_RATIO: Final = 0.1
"""The same for long ones, of the shortest execution: the last part of a transfer arrives at some ranks later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting(GroupCall):
    """One collective on one rank. Begin and end are None where its execution is not known. `step`: it ran in;
    `launched_in`: the step that issued it, which does not depend on when it ran."""

    seq: int
    launched_in: int | None
    begin_at_ns: int | None
    end_at_ns: int | None
    exact: bool  # False: a backend's own range, which stays open for milliseconds while a callback waits
    is_launch_recorded: bool = True  # False: it was launched before the file begins, in an unknown step


@dataclass(frozen=True, slots=True)
class RankInGroup:
    """A group on one rank: its collectives in launch order. `whole`: they are known to count from the group's first, as
    those that ddptrace recorded do. `let_go`: some are left out, and each has its `turn`. `sampled`: so are those of
    whole steps, which nobody counted. `counted`: the file begins anywhere, and each has the number that the backend
    gave it as its `turn`."""

    rank: int
    whole: bool
    sightings: tuple[Sighting, ...]
    let_go: bool = False
    sampled: bool = False
    counted: bool = False


def are_counted(group: Sequence[RankInGroup]) -> bool:
    """Whether the backend's numbers say which collective is which on all ranks."""
    return all(member.counted for member in group)


def doubt(group: Sequence[RankInGroup]) -> str | None:
    """What speaks against matching the ranks by position, as the end of a sentence; None where they may be matched as
    far as all of them go. Two ranks at least."""
    counts = [len(member.sightings) for member in group]
    whole = all(member.whole for member in group)
    if not whole and min(counts) != max(counts):
        few, many = counts.index(min(counts)), counts.index(max(counts))
        return f"rank {group[few].rank} shows {counts[few]} of them and rank {group[many].rank} {counts[many]}"
    if are_counted(group) and not counts[0]:
        return "by their numbers, no collective is in the files of all ranks"
    different = _different(group)
    return different if different or whole else _apart(group)


def _different(group: Sequence[RankInGroup]) -> str | None:
    """The first position at which the ranks did not call the same."""
    first = group[0]
    for other in group[1:]:
        for k, (a, b) in enumerate(zip(first.sightings, other.sightings, strict=False)):
            if differ(a, b):
                return _in_words(k, first.rank, a, other.rank, b)
    return None


def _in_words(k: int, rank: int, a: GroupCall, other: int, b: GroupCall) -> str:
    if a.op != b.op:
        return f"ordinal {k} is {a.op} on rank {rank} and {b.op} on rank {other}"
    if a.dtype != b.dtype and a.dtype and b.dtype:
        return f"ordinal {k}, {a.op}, is of {a.dtype} on rank {rank} and of {b.dtype} on rank {other}"
    if a.root != b.root and a.root is not None and b.root is not None:
        return f"ordinal {k}, {a.op}, has rank {a.root} as its root on rank {rank} and rank {b.root} on rank {other}"
    return f"ordinal {k}, {a.op}, has {a.nbytes} bytes on rank {rank} and {b.nbytes} bytes on rank {other}"


def _apart(group: Sequence[RankInGroup]) -> str | None:
    """Whether the ends disagree, or agree only by clocks that are further apart than the collectives."""
    rows = [row for row in zip(*(member.sightings for member in group), strict=True) if _tells(row)]
    exact = all(one.exact for row in rows for one in row)
    if not exact and _same_steps(group):
        return None
    if not rows:
        return (
            None
            if are_counted(group) or _same_steps(group)
            else "none of them ends together on all ranks, so nothing proves the pairs"
        )
    begins = np.array([[one.begin_at_ns for one in row] for row in rows], np.float64)
    ends = np.array([[one.end_at_ns for one in row] for row in rows], np.float64)
    clocks = clock_lines(ends)
    gap_ns = float(np.median(np.diff(np.sort(np.median(ends, axis=1))))) if len(rows) > 1 else 0.0
    return _scattered(begins, ends - clocks, gap_ns) or _ambiguous(group, ends, np.median(clocks, axis=0), gap_ns)


def _scattered(begins: Floats, ends: Floats, gap_ns: float) -> str | None:
    """`ends` by the ranks' clocks as far as they can be aligned; shape (collectives, ranks)."""
    shortest_ns = (ends - begins).min(axis=1)
    tolerance_ns = np.maximum(np.clip(gap_ns / 2, *TOLERANCE_NS), TOLERANCE_RATIO * shortest_ns)
    apart_ns = np.ptp(ends, axis=1)
    stray = apart_ns > tolerance_ns
    if stray.sum() <= (1 - MOST) * len(ends):
        return None
    return (
        f"{stray.sum()} of {len(ends)} do not end together on all ranks (median distance"
        f" {duration(float(np.median(apart_ns[stray])))}), so nothing proves that the files show the same collectives"
    )


def _ambiguous(group: Sequence[RankInGroup], ends: Floats, clocks: Floats, gap_ns: float) -> str | None:
    """A file that begins one collective later looks like a clock that is wrong by the time between two, unless the ends
    fit in this order only."""
    clocks_ns, near_ns = float(np.ptp(clocks)), max(gap_ns / 2, TOLERANCE_NS[0])
    if are_counted(group) or clocks_ns <= near_ns or _same_steps(group) or only_fit(ends, clocks, gap_ns, near_ns):
        return None
    return (
        f"their ends are {duration(clocks_ns)} apart from rank to rank, and the numbers of their steps do not agree, so"
        " the files may show different collectives"
    )


def _tells(row: Sequence[Sighting]) -> bool:
    return family_of(row[0].op).ends_together and all(sighting.end_at_ns is not None for sighting in row)


def _same_steps(group: Sequence[RankInGroup]) -> bool:
    """Most positions lie in a step of the same number on every rank."""
    steps = [[one.step for one in row] for row in zip(*(member.sightings for member in group), strict=True)]
    agreeing = sum(row[0] is not None and len(set(row)) == 1 for row in steps)
    return agreeing >= MOST * len(steps)


# What the ends tell of clocks -----------------------------------------------------------------------------------------


Floats = NDArray[np.float64]
DRIFT_MIN: Final = (20, 1e9)
"""So many collectives over so many ns at least tell a clock that runs fast from one that is late."""
DRIFT_MAX_RATIO: Final = 1e-3
FITS_RATIO: Final = 1 / 250
"""How far off the line the ends may lie (median), of the time between two collectives, for their order to be proved: on
one real set of 8 GPUs it is 1/1300; different steps of one rank, which a file that begins later would show, lie 1/90 to
1/30 off in the one real file with three."""
OTHERS_RATIO: Final = 4
"""So much farther they must lie in any other order."""
ENDS: Final = (6, 2000)
"""So few prove no order; so many do as well as all of them."""
SHIFTS_MAX: Final = 500


def clock_lines(ends: Floats) -> Floats:
    """How far each rank's clock is off the ranks' middle at each end. Shape (collectives, ranks), in time order."""
    middle = np.median(ends, axis=1)
    return np.column_stack([_clock_line(middle, off) for off in (ends - middle[:, None]).T])


def _clock_line(at_ns: Floats, off_ns: Floats) -> Floats:
    """Through medians of the halves, so that a few late ends do not bend it."""
    drift = 0.0
    if len(at_ns) >= DRIFT_MIN[0] and np.ptp(at_ns) >= DRIFT_MIN[1]:
        half = len(at_ns) // 2
        rise, run = (float(np.median(one[-half:]) - np.median(one[:half])) for one in (off_ns, at_ns))
        drift = float(np.clip(rise / run, -DRIFT_MAX_RATIO, DRIFT_MAX_RATIO))
    line: Floats = drift * (at_ns - np.median(at_ns))
    return line + np.median(off_ns - line)


def only_fit(ends: Floats, clocks: Floats, gap_ns: float, near_ns: float) -> bool:
    """Whether each rank whose clock is off by more than `near_ns` fits the others in this order and in no other.
    `clocks`: how far each is off; `gap_ns`: between two collectives."""
    first = int(np.argmin(np.abs(clocks - np.median(clocks))))
    apart = np.flatnonzero(np.abs(clocks - clocks[first]) > near_ns)
    few = ends[: ENDS[1]]
    return len(few) >= ENDS[0] and all(_fits_one_way(few[:, first], few[:, rank], gap_ns) for rank in apart)


def _fits_one_way(one: Floats, other: Floats, gap_ns: float) -> bool:
    residual_ns = _residual_ns(one, other)
    if residual_ns > FITS_RATIO * gap_ns:
        return False
    shifts = range(1, min(len(one) // 2, SHIFTS_MAX) + 1)
    others_ns = (_residual_ns(*pair) for k in shifts for pair in ((one[k:], other[:-k]), (one[:-k], other[k:])))
    return min(others_ns) > OTHERS_RATIO * residual_ns


def _residual_ns(one: Floats, other: Floats) -> float:
    off = other - one
    return float(np.median(np.abs(off - _clock_line(one, off))))
