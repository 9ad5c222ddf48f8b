"""Slices, and how they are laid out so that on every track they nest or are apart.

    unit A  [==========]            lane 1   A          C
    unit B       [=========]   ─▶   lane 2        B
    unit C               [====]

A unit is one slice with its children inside it; units that overlap go to different lanes, and none is dropped.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.tables import Intervals

LAUNCH: Final = "launch"
"""Name of the arrows from a launch to what it launched."""

quoted = json.encoder.encode_basestring  # Perfetto shows an escape in a track's name as it is written
numbered = "{:.12g}".format
"""Writes a number. With all its digits, Perfetto reads 0.00011544099870101665 as 0.0015."""


class Slice(NamedTuple):
    """One bar of the picture, half-open. `args` is JSON text; `flow` starts or ends an arrow here (0: none), and
    `flows` of them where it is the first of several."""

    name: str
    category: str
    begin_at_ns: int
    end_at_ns: int
    args: str = "{}"
    colour: str = ""
    flow: int = 0
    flow_phase: str = ""  # "s" starts the arrow, "f" ends it
    flow_name: str = LAUNCH
    flows: int = 1


Unit = tuple[Slice, ...]
"""A slice and its children, in the order of their begins, outer before inner."""


@dataclass(frozen=True, slots=True)
class Track:
    """One row of the picture; its slices nest or are apart, in the order of their begins."""

    name: str
    slices: Sequence[Slice]


@dataclass(frozen=True, slots=True)
class SpanTrack:
    """A row of slices that look all the same; `spans` is a union, so they are apart."""

    name: str
    looks: Slice
    spans: Intervals


@dataclass(frozen=True, slots=True)
class DeviceTrack:
    """A row of a device's work, which is apart and in the order of its begins. Columns have shape (n,)."""

    name: str
    looks: Sequence[Slice]  # each name, category, colour and arguments that occur; the JSON object is left open
    look: NDArray[np.int64]  # index into `looks`
    spans: Intervals
    delay_ns: NDArray[np.int64]  # from launch to begin; `NO_LAUNCH` where no launch was seen
    flow: NDArray[np.int64]  # the arrow that ends here, 0 for none


NO_LAUNCH: Final = np.iinfo(np.int64).min


def nested(outer: Slice, children: Sequence[Slice]) -> Unit:
    """`outer` and its `children` in their order, each cut to `outer` and to begin when the one before it has ended."""
    unit, last = [outer], outer.begin_at_ns
    for child in children:
        begin = min(max(child.begin_at_ns, last), outer.end_at_ns)
        last = min(max(child.end_at_ns, begin), outer.end_at_ns)
        unit.append(child if child[2:4] == (begin, last) else child._replace(begin_at_ns=begin, end_at_ns=last))
    return tuple(unit)


def lay_out(name: str, units: Sequence[Unit]) -> Iterator[Track]:
    """The fewest tracks on which `units` are apart: `name`, and where that is not enough `name · 2` and so on."""
    units = sorted(map(forward, units), key=by_begin)
    lanes: list[list[Slice]] = []
    for unit, lane in zip(units, assign([unit[0][2:4] for unit in units]), strict=True):
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].extend(unit)
    for number, slices in enumerate(lanes, start=1):
        yield Track(name if number == 1 else f"{name} · {number}", slices)


def apart(spans: Intervals) -> list[NDArray[np.int64]]:
    """Positions of the spans that share a lane, lane by lane, each in the order of begins. Spans that touch are apart;
    where all are, that is one lane, and soon found however many they are."""
    order = np.lexsort((-spans[:, 1], spans[:, 0]))
    ordered = spans[order]
    if (ordered[1:, 0] >= ordered[:-1, 1]).all():
        return [order]
    lanes = np.array(assign([(begin, end) for begin, end in ordered.tolist()]), np.int64)
    return [order[lanes == lane] for lane in range(int(lanes.max()) + 1)]


def by_begin(unit: Unit) -> tuple[int, int]:
    """Sort key: an outer slice comes before one that begins with it and ends earlier."""
    return unit[0].begin_at_ns, -unit[0].end_at_ns


def forward(unit: Unit) -> Unit:
    """A unit that ends before it begins (clocks that disagree) is drawn with no length."""
    begin, end = unit[0][2:4]
    return unit if end >= begin else nested(unit[0]._replace(end_at_ns=begin), unit[1:])


def assign(spans: Sequence[tuple[int, int]]) -> list[int]:
    """The lane of each span, the lowest that is free; `spans` in the order of their begins."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = []
    for begin, end in spans:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes
