"""Slices of the trace: makes one of a row of a table, and lays them out so that on every track they nest or are apart.

    unit A  [==========]            lane 1   A          C
    unit B       [=========]   ─▶   lane 2        B
    unit C               [====]

A unit is one slice with its children inside it; units that overlap go to different lanes, and none is dropped.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.load.tables import Intervals
from ddptrace.render.words import bucket_name, named_bucket, op_name, some_of
from ddptrace.units import duration, size

LAUNCH: Final = "launch"
"""Name of the arrows from a launch to what it launched."""
NO_LAUNCH: Final = np.iinfo(np.int64).min
PHASE_COLOURS: Final = {
    "data": "yellow",
    "forward": "rail_response",
    "backward": "rail_animation",
    "optimizer": "rail_load",
}

quoted = json.encoder.encode_basestring  # Perfetto shows an escape in a track's name as it is written
numbered = "{:.12g}".format
"""Writes a number. With all its digits, Perfetto reads 0.00011544099870101665 as 0.0015."""

NAMES: Final = {kind: tuple(entry.name for entry in fields(kind)) for kind in (StepRow, BucketRow, CollectiveRow)}
COLUMNS: Final = {kind: (names, attrgetter(*names)) for kind, names in NAMES.items()}
LITERAL: Final[dict[type, Callable[[Any], str]]] = {
    int: str,
    float: numbered,
    bool: lambda truth: "true" if truth else "false",
}


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
    units = sorted(map(forward, units), key=_by_begin)
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


def _by_begin(unit: Unit) -> tuple[int, int]:
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


def measured(values: Iterable[tuple[str, Any]]) -> str:
    """JSON of the values that were measured; what is neither a number nor a truth is written as text."""
    said = [f'"{key}":{LITERAL.get(type(value), text)(value)}' for key, value in values if value is not None]
    return "{" + ",".join(said) + "}"


def text(value: object) -> str:
    return quoted(str(value))


def columns(row: StepRow | BucketRow | CollectiveRow) -> Iterator[tuple[str, Any]]:
    names, values = COLUMNS[type(row)]
    return zip(names, values(row), strict=True)


def step_slice(row: StepRow) -> Slice:
    name = f"step {row.step} · {duration(row.wall_ns)}"
    return Slice(name, "step", row.begin_at_ns, row.end_at_ns, measured(columns(row)), "rail_idle")


def phase_slice(row: PhaseRow) -> Slice:
    colour = PHASE_COLOURS.get(row.phase, "grey")
    return Slice(row.phase, "phase", row.begin_at_ns, row.end_at_ns, f'{{"step":{row.step}}}', colour)


def bucket_slice(row: BucketRow, several_reducers: bool, flow: int) -> Slice:
    """What is said of a bucket wherever it is drawn: the two pictures below give it its begin and end."""
    said = {"parameters": some_of(row.parameters), "seqs": ", ".join(map(str, row.seqs))}
    values = [(key, said.get(key, value)) for key, value in columns(row)]
    args = measured([*values, ("parameter_count", len(row.parameters))])
    name, at = bucket_name(row, several_reducers), row.launch_at_ns
    return Slice(name, "bucket", at, at, args, exposure_colour(row), flow, "f")


def life_unit(row: BucketRow, bucket: Slice) -> Unit:
    """A bucket until its communication began: gradients arrive, it is held for an earlier one, launched, queued."""
    end = row.exec_start_at_ns if row.exec_start_at_ns is not None else row.launch_at_ns
    launch = min(row.launch_at_ns, end)
    ready = launch if row.ready_at_ns is None else min(row.ready_at_ns, launch)
    first = ready if row.first_ready_at_ns is None else min(row.first_ready_at_ns, ready)
    whole = Slice(bucket.name, "bucket", first, end, bucket.args, bucket.colour)
    children = []
    if row.first_ready_at_ns is not None and row.ready_at_ns is not None:
        children = [Slice("gradients", "bucket.ready", first, ready, colour="rail_animation")]
        children += [Slice("held", "bucket.held", ready, launch, colour="grey")] if launch > ready else []
    if row.exec_start_at_ns is not None:
        children.append(Slice("queue", "bucket.queue", launch, end, "{}", "yellow", bucket.flow, "s"))
    return nested(whole, children)


def exec_slice(row: BucketRow, bucket: Slice) -> Slice:
    """A bucket's communication; with no known end it is drawn without length."""
    begin = row.exec_start_at_ns if row.exec_start_at_ns is not None else row.launch_at_ns
    end = row.exec_end_at_ns if row.exec_end_at_ns is not None else begin
    return Slice(bucket.name, "bucket.exec", begin, end, bucket.args, bucket.colour, bucket.flow, "f")


def exposure_colour(row: BucketRow) -> str:
    if row.comm_ns is None or row.exposed_ns is None:
        return "grey"
    return "good" if row.exposed_ns * 10 < row.comm_ns else "bad" if row.exposed_ns * 2 < row.comm_ns else "terrible"


def collective_slice(row: CollectiveRow) -> Slice:
    """From the start of its execution where that is known, else from its launch, to the last that was seen of it."""
    begin = row.launch_at_ns if row.exec_start_at_ns is None else row.exec_start_at_ns
    ends = [end for end in (row.exec_end_at_ns, row.done_at_ns) if end is not None]
    args = measured([*columns(row), ("drawn_from", "launch" if row.exec_start_at_ns is None else "exec")])
    return Slice(collective_name(row), "collective", begin, ends[0] if ends else begin, args)


def collective_name(row: CollectiveRow | MatchRow) -> str:
    """By its operation, or as in "blocks.3 · unshard · 1.05 MB" by the unit that it serves."""
    if isinstance(row, CollectiveRow) and row.unit is not None and row.bucket is None:
        return f"{row.unit} · {row.unit_role} · {size(row.nbytes)}"
    return f"{op_name(row.op)} · {size(row.nbytes)}"


def met_name(row: MatchRow, several_reducers: bool) -> str:
    """By the bucket that it carried, where it did."""
    if row.bucket is None:
        return collective_name(row)
    reducer, _, index = row.bucket
    return named_bucket(reducer if several_reducers else None, index, row.nbytes)


def wait_slice(row: BucketRow | CollectiveRow, begin: int, end: int, several_reducers: bool) -> Slice:
    name = bucket_name(row, several_reducers) if isinstance(row, BucketRow) else collective_name(row)
    args = measured([("evidence", row.evidence), ("placed", "to end when the host learned that it was over")])
    return Slice(f"waits for {name}", "wait", begin, end, args, "thread_state_uninterruptible")
