"""Every step in the report: the picture of all steps, what computing beside communication costs, and what varies.

In: `steps`, `contention` and `jitter` of a `Result`. Out: a figure and sections of the report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any, Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow, StepRow
from ddptrace.render.figure import COLOURS, MARKS_MAX, SELDOM, Figure, axis, bars, layout, mean_ns, ms, plain
from ddptrace.render.markup import folded, label, section, table
from ddptrace.render.rpc_words import SPLIT
from ddptrace.render.words import PARTS, kernel_name
from ddptrace.units import counted, duration, millis, percent

RANKS_APART_MAX: Final = 4

TALL_MIN: Final = 3.0
"""Times the median, from which on a bar flattens the others."""
FEW_RATIO: Final = 0.1
"""More of them than this are what the program is like, and not cut off."""
ROOM_RATIO: Final = 0.4
"""Of the tallest other bar, left above it for the words."""
TOLD_MAX: Final = 3
"""In one panel, the tallest."""
LINE_PX: Final = 15

ROWS_MAX: Final = 20
ROWS_OPEN: Final = 8
RANKS_MAX: Final = 40
TAX_SUB: Final = (
    "The same operators or kernels, alone and beside communication, compared between steps at the same place in the"
    " step. Tax: how much longer those beside communication took, in all profiled steps of all ranks."
)
JITTER_SUB: Final = (
    "How long a rank's steps take and how much they vary, without the first step and those that ddptrace delayed. The"
    " last columns divide the variance, 100 % in all, among the phases without their waits, and waiting."
)
TAX_HEADS: Final = (
    ("name", "names"), ("ranks", ""), ("beside", ""), ("alone", ""), ("alone, median", ""), ("beside, median", ""),
    ("tax ms", ""),
)  # fmt: skip
JITTER_PARTS: Final = ("data", "forward", "backward", "optimizer", "other", "waiting")
JITTER_HEADS: Final = (
    ("rank", ""), ("steps", ""), ("median ms", ""), ("p95 ms", ""), ("spread ms", ""),
    *((part, "") for part in JITTER_PARTS),
)  # fmt: skip


def steps_figure(rows: Sequence[StepRow]) -> Figure | None:
    """The breakdown of every step: each rank apart where they are few, else the mean of the ranks, steps in bins."""
    if not rows:
        return None
    ranks = sorted({row.rank for row in rows})
    apart = len(ranks) <= RANKS_APART_MAX and len(rows) * len(SPLIT) <= MARKS_MAX
    panels = [("", list(rows))]
    if apart:
        panels = [(f"rank {rank}", [row for row in rows if row.rank == rank]) for rank in ranks]
    bins = [binned(panel) for _, panel in panels]
    data = [trace for number, panel in enumerate(bins, start=1) for trace in step_traces(panel, number)]
    data += [] if apart else band(bins[0])
    lengths = [[bar_of(bin_) for bin_ in panel] for panel in bins]
    top_ns = top_of(lengths)
    names = [name for name, _ in panels]
    axes = steps_axes(names, {} if top_ns is None else {"range": [0, *ms([top_ns])]})
    whole = "Every step of every rank." if apart else f"Mean over {counted(len(ranks), 'rank')}"
    width = bins[0][0].steps if bins[0] else 1
    said = whole if apart and width == 1 else f"{whole.rstrip('.')}, {counted(width, 'step')} per bar."
    said += "" if apart else " Nine in ten of its steps lie between the lines."
    height_px = 120 + 190 * len(panels) if len(panels) > 1 else 330
    return Figure(
        "steps",
        height_px,
        data,
        layout(**axes, bargap=0.06, annotations=cut_labels(lengths, top_ns)),
        f"{said} The parts add up to each step's window exactly.{cut_words(lengths, top_ns)}",
    )


def steps_axes(names: Sequence[str], end: dict[str, Any]) -> dict[str, Any]:
    """One below the other, a panel for each name. `end`: the common range of their lengths, where one is set."""
    domains, gap = len(names), 0.1 / len(names)
    axes: dict[str, Any] = {"xaxis": axis("step", anchor=f"y{domains}" if domains > 1 else "y")}
    for number, name in enumerate(names, start=1):
        top = 1 - (number - 1) / domains
        domain = [max(0.0, top - 1 / domains + (gap if number < domains else 0)), top]
        key, more = ("yaxis", {}) if number == 1 else (f"yaxis{number}", {"matches": "y"})
        axes[key] = axis(f"{name} · ms" if name else "ms", domain=domain) | more | end
    return axes


@dataclass(frozen=True, slots=True)
class Bin:
    """Neighbouring steps drawn as one bar: mean of each part over their rows."""

    first: int
    steps: int
    rows: int
    means: tuple[float, ...]
    low_ns: int  # the window that one in twenty is shorter than
    high_ns: int  # and longer than


def binned(rows: Sequence[StepRow]) -> list[Bin]:
    numbers = sorted({row.step for row in rows})
    bars_max = MARKS_MAX // len(SPLIT) // RANKS_APART_MAX
    width = -(-len(numbers) // bars_max)
    place = {step: index // width for index, step in enumerate(numbers)}
    inside: list[list[StepRow]] = [[] for _ in range(-(-len(numbers) // width))]
    for row in rows:
        inside[place[row.step]].append(row)
    return [bin_of(rows) for rows in inside]


def bin_of(rows: Sequence[StepRow]) -> Bin:
    means = tuple(mean_ns(rows, part) for part in SPLIT)
    windows, edge = sorted(row.window_ns for row in rows), len(rows) // 20
    steps = {row.step for row in rows}
    return Bin(min(steps), len(steps), len(rows), means, windows[edge], windows[-1 - edge])


def step_traces(bins: Sequence[Bin], panel: int) -> Iterable[dict[str, Any]]:
    for place, part in enumerate(SPLIT):
        if part in SELDOM and not any(bin_.means[place] for bin_ in bins):
            continue
        yield bars(
            PARTS[part],
            part,
            yaxis="y" if panel == 1 else f"y{panel}",
            showlegend=panel == 1,
            x=[bin_.first + (bin_.steps - 1) / 2 for bin_ in bins],
            y=ms(bin.means[place] for bin in bins),
            width=[bin_.steps * 0.94 for bin_ in bins],
            hovertext=[bin_words(bin_, part, bin_.means[place]) for bin_ in bins],
        )


def band(bins: Sequence[Bin]) -> Iterable[dict[str, Any]]:
    """What most of the steps in each bar lie between."""
    middles = [bin_.first + (bin_.steps - 1) / 2 for bin_ in bins]
    for lengths, in_legend in (([bin_.high_ns for bin_ in bins], True), ([bin.low_ns for bin in bins], False)):
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "nine in ten steps",
            "x": middles,
            "y": ms(lengths),
            "line": {"color": COLOURS["band"], "width": 1.5, "shape": "hvh"},
            "hoverinfo": "skip",
            "showlegend": in_legend,
            "legendgroup": "band",
        }


def bar_of(bin_: Bin) -> Bar:
    return Bar(bin_.first - 0.5, bin_.first + bin_.steps - 0.5, sum(bin_.means), steps_name(bin_))


def steps_name(bin_: Bin) -> str:
    return f"step {bin_.first}" if bin_.steps == 1 else f"steps {bin_.first} to {bin_.first + bin_.steps - 1}"


def bin_words(bin_: Bin, part: str, ns: float) -> str:
    whole = sum(bin_.means)
    share = plain(percent(ns / whole if whole else None))
    return f"{steps_name(bin_)}: {PARTS[part]} {duration(ns)}, {share} of {duration(whole)}"


# Bars that would flatten all others -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """`begin` to `end` on the step axis; `name` is that of its steps."""

    begin: float
    end: float
    ns: float
    name: str


def top_of(panels: Sequence[Sequence[Bar]]) -> float | None:
    """Where the axis of all panels is to end, in ns; None: with the tallest bar, as ever. Each panel may have one that
    is cut off."""
    lengths = [bar.ns for panel in panels for bar in panel]
    tall_ns = TALL_MIN * median_low(lengths)
    others = [ns for ns in lengths if ns <= tall_ns]
    tall = len(lengths) - len(others)
    if not tall_ns or not tall or tall > max(len(panels), FEW_RATIO * len(lengths)):
        return None
    return (1 + ROOM_RATIO) * max(others)


def cut_labels(panels: Sequence[Sequence[Bar]], top_ns: float | None) -> list[dict[str, Any]]:
    """What plotly writes beside the bars that are cut off."""
    if top_ns is None:
        return []
    return [cut for number, panel in enumerate(panels, start=1) for cut in _cut_labels_in(panel, top_ns, number)]


def _cut_labels_in(panel: Sequence[Bar], top_ns: float, number: int) -> Iterator[dict[str, Any]]:
    middle = (panel[0].begin + panel[-1].end) / 2
    cut = sorted((bar for bar in panel if bar.ns > top_ns), key=lambda bar: -bar.ns)[:TOLD_MAX]
    for line, bar in enumerate(cut):
        yield _cut_label(bar, bar.begin < middle, number, line)


def _cut_label(bar: Bar, at_right: bool, number: int, line: int) -> dict[str, Any]:
    words = f"{bar.name}: {duration(bar.ns)}"
    return {
        "text": f"↑ {words}" if at_right else f"{words} ↑",
        "showarrow": False,
        "xref": "x",
        "yref": "y domain" if number == 1 else f"y{number} domain",
        "x": bar.end if at_right else bar.begin,
        "y": 1,
        "xanchor": "left" if at_right else "right",
        "yanchor": "top",
        "yshift": -LINE_PX * line,
    }


def cut_words(panels: Sequence[Sequence[Bar]], top_ns: float | None) -> str:
    """For the caption."""
    cut = 0 if top_ns is None else sum(bar.ns > top_ns for panel in panels for bar in panel)
    return f" {counted(cut, 'bar')} {'is' if cut == 1 else 'are'} cut off at the top." if cut else ""


# What takes longer, and what varies -----------------------------------------------------------------------------------


def contention_section(result: Result) -> str:
    """Dearest first; what is faster beside communication costs nothing, and is left out."""
    by_name: defaultdict[str, list[ContentionRow]] = defaultdict(list)
    for row in result.contention:
        by_name[row.name].append(row)
    dear = [rows for rows in by_name.values() if tax_of(rows) > 0]
    dear.sort(key=lambda rows: (-tax_of(rows), rows[0].name))
    cells = [tax_cells(rows) for rows in dear[:ROWS_MAX]]
    return section("Computing beside communication", TAX_SUB, table(TAX_HEADS, cells)) if cells else ""


def tax_of(rows: list[ContentionRow]) -> int:
    return sum(row.tax_ns for row in rows)


def tax_cells(rows: list[ContentionRow]) -> list[str]:
    """One name, on all ranks."""
    return [
        f"<code>{label(kernel_name(rows[0].name))}</code>",
        str(len(rows)),
        f"{sum(row.beside for row in rows):,}",
        f"{sum(row.alone for row in rows):,}",
        duration(median(row.alone_ns for row in rows)),
        duration(median(row.beside_ns for row in rows)),
        millis(tax_of(rows)),
    ]


def jitter_section(result: Result, picture: str) -> str:
    """In the table, of many ranks those whose steps vary most."""
    ranks: defaultdict[int, dict[str, JitterRow]] = defaultdict(dict)
    for row in result.jitter:
        ranks[row.rank][row.part] = row
    whole = [rank for rank, parts in ranks.items() if "step" in parts]
    shown = sorted(whole, key=lambda rank: (-ranks[rank]["step"].spread_ns, rank))[:RANKS_MAX]
    cells = [jitter_cells(rank, ranks[rank]) for rank in (shown if len(shown) > ROWS_OPEN else sorted(shown))]
    return (
        section("What varies from step to step", JITTER_SUB, picture, folded(JITTER_HEADS, cells, ROWS_OPEN, "ranks"))
        if cells
        else ""
    )


def jitter_cells(rank: int, parts: dict[str, JitterRow]) -> list[str]:
    step = parts["step"]
    shares = [parts[part].share_ratio if part in parts else None for part in JITTER_PARTS]
    return [
        str(rank),
        f"{step.steps:,}",
        millis(step.median_ns),
        millis(step.p95_ns),
        millis(step.spread_ns),
        *(label(percent(share)) for share in shares),
    ]
