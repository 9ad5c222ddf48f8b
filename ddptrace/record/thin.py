"""Thins the slots of a file: descriptions of the run stay, events are deleted and counted.

slots   G e e e W e p p p e e D e        G, D, W: describe   e: events   p: events around a profiler window that is kept
left    ^ G [3+1] p p p W [3] D          ^: sums   [n]: n events were deleted here (and how many calls by group)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.schema import EVENT_DTYPE, GUARD, RECORD_NBYTES, Kind

Slots = NDArray[np.void]
Mask = NDArray[np.bool_]
Span = tuple[int, int]

DESCRIBING: Final = (
    Kind.STRING,
    Kind.REDUCER,
    Kind.LAYOUT,
    Kind.UNIT,
    Kind.GROUP,
    Kind.WINDOW,
    Kind.NOTE,
    Kind.THREAD,
    Kind.RPC_WORKER,
    Kind.FILE_LET_GO,
)
UNBOUNDED: Final = (Kind.REDUCER, Kind.LAYOUT, Kind.UNIT, Kind.NOTE)
"""A program that makes a model in every step makes these without limit."""
LASTING: Final = (Kind.GROUP, Kind.THREAD, Kind.RPC_WORKER)
"""These stay, as names do, so their number is limited when they are written: the first ones matter most."""
SO_FAR: Final = (Kind.LINK, Kind.CGROUP)
"""Running counts from the start, by name: the last one includes those before it."""

TOLD: Final = 1 << 20
"""Texts with ids from here on belong to one record, which refers to them by `name`. Lower ids may be shared."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What stays besides descriptions.

    `windows`: the stretch of time whose events stay, by the id of a profiler window's file. `unpaired`: ids of ops that
    not all ranks of a group issue. `nbytes`: the maximum size of everything.
    """

    windows: dict[int, Span]
    unpaired: Collection[int]
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Gap:
    """Events deleted between two that stay. `at`: the slot before which the gap is recorded."""

    at: int
    begin: int
    end: int
    records: int
    calls: Counter[int]  # by group
    paired: Counter[int]


def thinned(slots: Slots, wanted: Wanted) -> bytes:
    """Return what remains of a file's slots, in their order; the first may come from an earlier thinning.

    Skips empty and torn slots and the trailer. Works on columns, so that it takes little more memory than these.
    """
    kinds = slots["kind"]
    whole = (slots["guard"] == GUARD) & ~np.isin(kinds, (Kind.NONE, Kind.TRAILER))
    marks = whole & (kinds == Kind.LET_GO) & (slots["flags"] == 0)  # sums are computed again
    describing = whole & np.isin(kinds, DESCRIBING)
    events = whole & ~describing & (kinds != Kind.LET_GO)
    pinned = events & _within(slots["begin"], wanted.windows.values())
    stays = pinned.copy()
    stays[_needed_clocks(slots, events & (kinds == Kind.CLOCK), wanted.windows.values())] = True
    stays[last_so_far(slots, events)] = True
    gaps = list(_gaps(slots, events & ~stays, marks, pinned, wanted.unpaired))
    left = wanted.nbytes // RECORD_NBYTES - int(stays.sum()) - 1 - sum(1 + len(gap.calls) for gap in gaps)
    goes = _superfluous(slots, describing, wanted, left)
    lost = int((goes & np.isin(kinds, UNBOUNDED)).sum())
    sums = whole & (kinds == Kind.LET_GO) & (slots["flags"] == 1)
    return _joined(slots, stays | (describing & ~goes), gaps, lost + int(slots["b"][sums].sum()))


def _within(begins: NDArray[np.int64], spans: Collection[Span]) -> Mask:
    inside = np.zeros(len(begins), np.bool_)
    for begin, end in spans:
        inside |= (begins >= begin) & (begins <= end)
    return inside


def _needed_clocks(slots: Slots, clocks: Mask, spans: Collection[Span]) -> list[int]:
    """Return the clock pairs that stay: the first, which all times depend on; the nearest ones around each profiler
    window, whose times are Unix times; and the last, which may become one of those."""
    at = np.flatnonzero(clocks)
    begins = slots["begin"][at]
    before = [at[begins < begin][-1:] for begin, _ in spans]
    after = [at[begins > end][:1] for _, end in spans]
    needed: list[int] = np.concatenate([at[:1], at[-1:], *before, *after]).tolist()
    return needed


def last_so_far(slots: Slots, events: Mask) -> NDArray[np.intp]:
    """Return the positions of the last of each running count."""
    at = np.flatnonzero(events & np.isin(slots["kind"], SO_FAR))[::-1]
    _, first = np.unique(slots[["kind", "name"]][at], return_index=True)
    return at[first]


def _superfluous(slots: Slots, describing: Mask, wanted: Wanted, most: int) -> Mask:
    """Return the descriptions to delete, so that at most `most` records stay.

    These are windows whose file is gone, counts of those that a later count replaces, the oldest of UNBOUNDED kinds,
    and the texts of all these.
    """
    kinds, names = slots["kind"], slots["name"]
    goes = describing & (kinds == Kind.WINDOW) & ~np.isin(names, list(wanted.windows))
    goes[np.flatnonzero(describing & (kinds == Kind.FILE_LET_GO))[:-1]] = True
    texts = describing & (kinds == Kind.STRING)
    sizes = Counter(names[texts].tolist())  # in records
    left = most - int((describing & ~goes).sum())
    for at in np.flatnonzero(describing & np.isin(kinds, UNBOUNDED)):
        if left >= 0:
            break
        goes[at] = True
        left += 1 + sizes[int(names[at])]
    told = np.unique(names[goes])
    superfluous: Mask = goes | (texts & (names >= TOLD) & np.isin(names, told))
    return superfluous


def _gaps(slots: Slots, gone: Mask, marks: Mask, pinned: Mask, unpaired: Collection[int]) -> Iterator[_Gap]:
    stretch = np.cumsum(pinned)  # a number for every stretch between two events that stay
    for number in np.unique(stretch[gone | marks]):
        first, last = np.searchsorted(stretch, [number, number + 1])
        here, its_marks = first + np.flatnonzero(gone[first:last]), first + np.flatnonzero(marks[first:last])
        yield _gap(int(last), slots, here, slots[its_marks], unpaired)


def _gap(at: int, slots: Slots, gone: NDArray[np.intp], marks: Slots, unpaired: Collection[int]) -> _Gap:
    """`gone`: positions of the deleted events; `marks`: records of earlier thinnings at this place."""
    before = marks[marks["d"] == 0]
    kinds, begins, ends = (slots[name][gone] for name in ("kind", "begin", "end"))
    written = np.where(kinds == Kind.READY, begins, np.maximum(begins, ends))
    groups, names = (slots[name][gone[kinds == Kind.CALL]] for name in ("d", "name"))
    calls, paired = _count(groups[groups != 0]), _count(groups[(groups != 0) & ~np.isin(names, list(unpaired))])
    for mark in marks[marks["d"] != 0]:
        calls[int(mark["d"])] += int(mark["a"])
        paired[int(mark["d"])] += int(mark["b"])
    return _Gap(
        at,
        int(np.append(written, before["begin"]).min()),
        int(np.append(written, before["end"]).max()),
        len(gone) + int(before["a"].sum()),
        calls,
        paired,
    )


def _count(values: NDArray[np.integer[Any]]) -> Counter[int]:
    """Count values with NumPy: `Counter` itself would hold the GIL for milliseconds."""
    found, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def _joined(slots: Slots, stays: Mask, gaps: Sequence[_Gap], lost: int) -> bytes:
    """Join the file's records: sums, then what stays, with a record for each gap. `lost`: deleted descriptions."""
    begin, end = (min(gap.begin for gap in gaps), max(gap.end for gap in gaps)) if gaps else (0, 0)
    parts = [_mark(begin, end, sum(gap.records for gap in gaps), lost, flags=1)]
    cuts = [0, *(gap.at for gap in gaps), len(slots)]
    for number, (first, last) in enumerate(pairwise(cuts)):
        parts.append(slots[first:last][stays[first:last]])
        if number < len(gaps):
            parts += _told(gaps[number])
    return b"".join(part.tobytes() for part in parts)


def _told(gap: _Gap) -> list[Slots]:
    whole = _mark(gap.begin, gap.end, gap.records)
    return [whole, *(_mark(gap.begin, gap.end, n, gap.paired[d], group=d) for d, n in sorted(gap.calls.items()))]


def _mark(begin: int, end: int, records: int, paired: int = 0, *, group: int = 0, flags: int = 0) -> Slots:
    mark = np.zeros(1, EVENT_DTYPE)
    for name, value in (
        ("kind", Kind.LET_GO),
        ("flags", flags),
        ("begin", begin),
        ("end", end),
        ("a", records),
        ("b", paired),
        ("d", group),
        ("guard", GUARD),
    ):
        mark[name] = value
    return mark
