"""One typical step, drawn: rows and bars for what each rank computed, and where its buckets were meanwhile.

rank 0 · phases         | forward      | backward               | opt |
         gradients               ────~  ────~                            arriving, then queued
         compute        | ████████████ | ███████████████        | ███ |
         communication              ▓▓▓▓▓ ▓▓▓▓▓ ▓▓█████                  hidden, then exposed
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Final

import numpy as np

from ddptrace.analysis.intervals import EMPTY, Measure, clip, pairs, subtract, total, union
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.load.tables import Intervals
from ddptrace.render.figure import COLOURS, MARKS_MAX, Figure, axis, layout, ms, plain
from ddptrace.render.trace.slices import assign, collective_name
from ddptrace.render.words import bucket_name, some_of
from ddptrace.units import counted, duration

RANKS_MAX: Final = 4
ITEMS_MAX: Final = 300
COMPUTE_MARKS_MAX: Final = 100
EXPOSED_MARKS_MAX: Final = 60
PX_PER_ROW: Final = 34
PHASE_ROW, LIFE_ROW, WORK_ROW = 0.62, 0.2, 0.85
"""How thick the rows are."""
LANES_DEPTH: Final = 3.4
"""Of all rows of a rank's communication together: of many each is the thinner."""
LIVES_DEPTH: Final = 1.0
"""Likewise of its gradients."""
ROW_GAP: Final = 0.12
KINDS: Final = {
    "data": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer", "other": "other",
    "gradients": "gradients arriving", "queue": "launched, queued", "compute": "compute",
    "hidden": "communication, hidden", "exposed_comm": "communication, exposed", "label": "",
}  # fmt: skip
"""What is drawn, in the order in which later covers earlier."""
UNLISTED: Final = ("data", "forward", "backward", "optimizer", "label")
"""What says its own name needs no place in the legend."""

GROWN_MAX_RATIO: Final = 1.25
"""Closing pauses may draw intervals so much longer than they are; above that it would lie."""
SEEN_MIN_RATIO: Final = 1 / 1500
"""Of the drawing's width: what is narrower than this would be drawn wider than it is."""

Bar = tuple[int, int, float, float, str, str, str]
"""Begin and end in ns from the left edge, place, thickness, what to say when pointed at, what to write inside, and of a
bucket what links to it."""


@dataclass(frozen=True, slots=True)
class Item:
    """One communication of the step: a bucket or another collective. Instants in ns since the run's zero."""

    begin: int
    end: int
    short: str
    words: str
    row: BucketRow | None

    @property
    def key(self) -> str:
        """What links to it, as `buckets.drawn_as`."""
        return "" if self.row is None else f"{self.row.reducer} {self.row.layout} {self.row.index}"


@dataclass(frozen=True, slots=True)
class Lot:
    """What is drawn of one rank."""

    step: StepRow
    phases: list[PhaseRow]
    items: list[Item]
    compute: Shade


def timeline_figure(result: Result) -> Figure | None:
    """A step of typical length, on a few ranks."""
    steps, _ = measured_steps(result.steps)
    if not steps:
        return None
    chosen = typical_ordinal(steps)
    present = sorted((row for row in steps if row.step == chosen), key=lambda row: row.rank)
    shown = apart(present)
    shared_zero = begin_together(shown)
    lots = lots_of(result, shown)
    lots = sorted(lots[: max(1, MARKS_MAX // max(map(marks_of, lots)))], key=lambda lot: lot.step.rank)
    canvas = Canvas()
    for lot in lots:
        draw(canvas, lot, shared_zero if shared_zero is not None else lot.step.begin_at_ns)
    height = round(100 + PX_PER_ROW * canvas.depth)
    said = caption(chosen, lots, present) + (
        "" if shared_zero is not None else " The time of each rank counts from its own begin of the step."
    )
    return Figure("timeline", height, traces(canvas), sheet(canvas), said)


def apart(present: Sequence[StepRow]) -> list[StepRow]:
    """Most exposed communication first; of many ranks those that differ most: with most, with least, and the middle."""
    by_exposed = sorted(present, key=lambda row: (-(row.exposed_comm_ns or 0), row.rank))
    if len(present) <= RANKS_MAX:
        return by_exposed
    return [by_exposed[0], by_exposed[-1], by_exposed[len(by_exposed) // 2]]


def begin_together(rows: Sequence[StepRow]) -> int | None:
    """The earliest begin, None where the ranks' clocks or steps are further apart than a step is long."""
    begins = [row.begin_at_ns for row in rows]
    return min(begins) if max(begins) - min(begins) <= median(row.wall_ns for row in rows) else None


def typical_ordinal(steps: Sequence[StepRow]) -> int:
    """The step that most ranks have and whose mean length is nearest the median."""
    by_step: dict[int, list[int]] = {}
    for row in steps:
        by_step.setdefault(row.step, []).append(row.wall_ns)
    whole = max(map(len, by_step.values()))
    lengths = {step: mean(walls) for step, walls in by_step.items() if len(walls) == whole}
    middle = median(lengths.values())
    return min(lengths, key=lambda step: (abs(lengths[step] - middle), step))


def lots_of(result: Result, steps: Sequence[StepRow]) -> list[Lot]:
    """What there is to draw of each of these steps; every table is gone through once, since they can be long."""
    wanted = {(row.rank, row.step) for row in steps}
    phases: defaultdict[int, list[PhaseRow]] = defaultdict(list)
    for phase in result.phases:
        if (phase.rank, phase.step) in wanted:
            phases[phase.rank].append(phase)
    items: defaultdict[int, list[Item]] = defaultdict(list)
    for rank, item in itertools.chain(bucket_items(result, wanted), other_items(result, wanted)):
        items[rank].append(item)
    compute = {activity.rank: activity.compute for activity in result.activity}
    return [lot_of(row, phases[row.rank], items[row.rank], compute.get(row.rank, EMPTY)) for row in steps]


def lot_of(step: StepRow, phases: list[PhaseRow], items: list[Item], compute: Intervals) -> Lot:
    items = sorted(items, key=lambda item: item.begin - item.end)[:ITEMS_MAX]
    end = max([step.end_at_ns, *(item.end for item in items)])
    spans = clip(union(compute), step.begin_at_ns, end)
    drawn = shade(spans, step.begin_at_ns, end, COMPUTE_MARKS_MAX)
    return Lot(step, phases, sorted(items, key=lambda item: (item.begin, item.end)), drawn)


def bucket_items(result: Result, wanted: set[tuple[int, int]]) -> Iterator[tuple[int, Item]]:
    several = len({row.reducer for row in result.buckets}) > 1
    for row in result.buckets:
        if (row.rank, row.step) in wanted and row.exec_start_at_ns is not None and row.exec_end_at_ns is not None:
            words = f"{bucket_name(row, several)}<br>{plain(some_of(row.parameters, 3))}<br>{figures_of(row)}"
            yield row.rank, Item(row.exec_start_at_ns, row.exec_end_at_ns, f"{row.index}", words, row)


def other_items(result: Result, wanted: set[tuple[int, int]]) -> Iterator[tuple[int, Item]]:
    for row in result.collectives:
        if row.bucket is not None or (row.rank, row.step) not in wanted:
            continue
        if row.exec_start_at_ns is not None and row.exec_end_at_ns is not None:
            words = f"{plain(collective_name(row))}<br>exposed {duration(row.exposed_ns)} of {duration(row.comm_ns)}"
            yield row.rank, Item(row.exec_start_at_ns, row.exec_end_at_ns, plain(row.unit or ""), words, None)


def figures_of(row: BucketRow) -> str:
    waited = f"queued {duration(row.queue_ns)}, " if row.queue_ns is not None else ""
    return f"{waited}communication {duration(row.comm_ns)}, exposed {duration(row.exposed_ns)}"


def marks_of(lot: Lot) -> int:
    """An upper bound of the bars that a rank's drawing takes."""
    return len(lot.phases) + COMPUTE_MARKS_MAX + EXPOSED_MARKS_MAX + 4 * len(lot.items)


def draw(canvas: Canvas, lot: Lot, zero: int) -> None:
    canvas.zero = zero
    place = canvas.row(f"<b>rank {lot.step.rank}</b> phases", PHASE_ROW)
    for phase in lot.phases:
        span = phase.begin_at_ns, phase.end_at_ns
        kind = phase.phase if phase.phase in KINDS else "other"
        name = plain(phase.phase)
        inside = "" if kind == "other" else name
        canvas.add(kind, span, place, PHASE_ROW, f"{name} {duration(span[1] - span[0])}", inside)
    draw_gradients(canvas, lot)
    place = canvas.row("compute" if lot.step.is_seen else "compute: not seen", WORK_ROW)
    for begin, end, ratio in lot.compute.bars:
        low = place + WORK_ROW * (1 - ratio) / 2
        words = f"compute {duration((end - begin) * ratio)} of {duration(end - begin)}"
        canvas.add("compute", (begin, end), low, WORK_ROW * ratio, words if ratio < 1 else words.split(" of ")[0])
    draw_communication(canvas, lot)
    canvas.depth += 0.5


def draw_gradients(canvas: Canvas, lot: Lot) -> None:
    """Each bucket from its first gradient to the start of its communication, as a thin line."""
    lives = [(first_seen(item.row), item.row, item) for item in lot.items if item.row is not None]
    lives.sort(key=lambda life: life[0])
    lanes = assign([(begin, item.begin) for begin, _, item in lives])
    places, thick = canvas.rows("gradients", max(lanes, default=-1) + 1, LIFE_ROW, LIVES_DEPTH)
    for (begin, row, item), lane in zip(lives, lanes, strict=True):
        arriving = begin, min(row.launch_at_ns, item.begin)
        canvas.add("gradients", arriving, places[lane], thick, item.words, key=item.key)
        canvas.add("queue", (row.launch_at_ns, item.begin), places[lane], thick, item.words)


def first_seen(row: BucketRow) -> int:
    return min(at for at in (row.first_ready_at_ns, row.ready_at_ns, row.launch_at_ns) if at is not None)


def draw_communication(canvas: Canvas, lot: Lot) -> None:
    lanes = assign([(item.begin, item.end) for item in lot.items])
    places, thick = canvas.rows("communication", max(lanes, default=-1) + 1, WORK_ROW, LANES_DEPTH)
    for item, lane in zip(lot.items, lanes, strict=True):
        for kind, inside in (("hidden", ""), ("label", item.short)):
            canvas.add(kind, (item.begin, item.end), places[lane], thick, item.words, inside, item.key)
    for number, place in enumerate(places):
        spans = pairs((item.begin, item.end) for item, lane in zip(lot.items, lanes, strict=True) if lane == number)
        exposed = subtract(union(spans), lot.compute.covered) if lot.step.is_seen else EMPTY
        exposed = simplified(exposed, EXPOSED_MARKS_MAX // len(places) or 1, 0)
        for begin, end in exposed.tolist():
            canvas.add("exposed_comm", (begin, end), place, thick, "")


def chosen_words(lots: Sequence[Lot], present: Sequence[StepRow]) -> str:
    """Which ranks are drawn, where not all are: see `apart`."""
    if len(present) <= RANKS_MAX or len(lots) == 1:
        return "the most"
    return "the most, the least" + (" and the middle" if len(lots) > 2 else "")


def caption(chosen: int, lots: Sequence[Lot], present: Sequence[StepRow]) -> str:
    said = f"Step {chosen}, the typical step of median length."
    if len(lots) < len(present):
        said += f" {counted(len(lots), 'rank')} of {len(present)}, by exposed time: {chosen_words(lots, present)}."
    if any(len(lot.items) == ITEMS_MAX for lot in lots):
        said += f" Of each rank, only the {ITEMS_MAX} longest collectives are shown."
    if any(ratio < 1 for lot in lots for *_, ratio in lot.compute.bars):
        said += " Where a rank's compute is mostly pauses, its height is the share of the time in which it computed."
    if any(item.row is not None for lot in lots for item in lot.items):
        said += " Numbers are bucket indices."
    return said + " Pauses in compute that are too short to see are closed in the drawing."


# Many short intervals as a few bars -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shade:
    """`bars`: begin, end, and the share of it that is covered. `covered`: what counts as covered beside them."""

    bars: list[tuple[int, int, float]]
    covered: Intervals


def shade(spans: Intervals, begin: int, end: int, most: int) -> Shade:
    """At most `most` bars of the union `spans`, which lies in [begin, end): as it is but for the shortest pauses, or
    where it is mostly pauses, bars of one width with the share that each holds of it."""
    closed = simplified(spans, most, (end - begin) * SEEN_MIN_RATIO)
    if total(closed) <= GROWN_MAX_RATIO * total(spans):
        return Shade([(low, high, 1.0) for low, high in closed.tolist()], closed)
    edges = np.linspace(begin, end, most + 1).astype(np.int64)
    covered = Measure(spans).within(edges[:-1], edges[1:])
    ratios = covered / np.maximum(np.diff(edges), 1)
    bars = zip(edges[:-1].tolist(), edges[1:].tolist(), ratios.tolist(), strict=True)
    return Shade([bar for bar in bars if bar[2] > 0], spans)


def simplified(spans: Intervals, most: int, gap_min_ns: float) -> Intervals:
    """A union of at most `most` intervals, for drawing: gaps below `gap_min_ns` and the narrowest ones are closed."""
    gaps = spans[1:, 0] - spans[:-1, 1]
    order = np.argsort(gaps, kind="stable")[max(0, len(gaps) - (most - 1)) :]
    keep = np.sort(order[gaps[order] >= gap_min_ns])
    begins = np.concatenate((spans[:1, 0], spans[keep + 1, 0]))
    return np.column_stack((begins, np.concatenate((spans[keep, 1], spans[-1:, 1]))))


# Bars on rows ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Canvas:
    """The bars of each kind, and the rows' names from top to bottom."""

    bars: dict[str, list[Bar]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    names: list[tuple[float, str]] = field(default_factory=list)
    depth: float = 0.0
    zero: int = 0  # the instant at the left edge, for what is added from now on

    def row(self, name: str, thickness: float, gap: float = ROW_GAP) -> float:
        """Begin a row below the others and give its middle."""
        place = self.depth + thickness / 2
        if name:
            self.names.append((place, name))
        self.depth += thickness + gap
        return place

    def rows(self, name: str, count: int, thickness: float, depth: float) -> tuple[list[float], float]:
        """Several at once, thinner where they are more than `depth` has room for: their middles, and how thick."""
        scale = min(1.0, depth / (count * (thickness + ROW_GAP))) if count else 1.0
        places = [self.row(name if at == 0 else "", scale * thickness, scale * ROW_GAP) for at in range(count)]
        return places, scale * thickness

    def add(
        self,
        kind: str,
        span: tuple[int, int],
        place: float,
        thickness: float,
        hover: str,
        inside: str = "",
        key: str = "",
    ) -> None:
        if span[1] > span[0]:
            self.bars[kind].append((span[0] - self.zero, span[1] - self.zero, place, thickness, hover, inside, key))


def traces(canvas: Canvas) -> list[dict[str, Any]]:
    return [trace(kind, bars) for kind, bars in canvas.bars.items() if bars]


def trace(kind: str, bars: list[Bar]) -> dict[str, Any]:
    begins, ends, places, widths, hover, inside, keys = zip(*bars, strict=True)
    return {
        "type": "bar",
        "orientation": "h",
        "name": KINDS[kind],
        "showlegend": kind not in UNLISTED,
        "marker": {"color": COLOURS.get(kind, "rgba(0,0,0,0)"), "line": {"width": 0}},
        "base": ms(begins),
        "x": ms(end - begin for begin, end in zip(begins, ends, strict=True)),
        "y": list(places),
        "width": list(widths),
        "hovertext": list(hover),
        "hoverinfo": "skip" if kind in ("hidden", "exposed_comm") else "text",
        "text": list(inside),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": "#ffffff" if kind == "backward" else "#10222e", "size": 11},
        "constraintext": "inside",
        **({"customdata": list(keys)} if any(keys) else {}),
    }


def sheet(canvas: Canvas) -> dict[str, Any]:
    places, names = zip(*canvas.names, strict=True)
    rows = axis(range=[canvas.depth - 0.3, -0.2], tickvals=list(places), ticktext=list(names), showgrid=False)
    return layout(
        barmode="overlay",
        yaxis=rows,
        xaxis=axis("ms since the step began", rangemode="tozero"),
        hovermode="closest",
        uniformtext={"mode": "hide", "minsize": 9},
        dragmode="zoom",
    )
