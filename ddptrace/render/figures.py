"""The report's pictures as plain data: what plotly.js is given. Numbers in, no files, no HTML.

Every picture has a bounded number of marks, whatever the run's size. Text that plotly shows goes through `plain`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.analysis.summary import PHASES, BucketSummary, Summary
from ddptrace.analysis.tables import StepRow
from ddptrace.render.rpc_words import SPLIT, split_ns
from ddptrace.render.tall_bars import Bar, cut_words, labels, top_of
from ddptrace.render.words import PARTS as PART_WORDS
from ddptrace.render.words import counted, duration, named_bucket, percent, size, some_of

COLOURS: Final = {
    "compute": "#3f8f8b", "exposed_comm": "#e4683a", "exposed_memory": "#9a6fb8", "idle": "rgba(134,142,153,0.32)",
    "hidden": "#86b6d9", "comm": "#86b6d9", "memory": "#9a6fb8", "queue": "#d9b44a",
    "gradients": "rgba(134,142,153,0.45)",
    "data": "#d9b44a", "forward": "#7fb2c9", "backward": "#41729f", "optimizer": "#7a9e59",
    "other": "rgba(134,142,153,0.32)", "rpc_wait": "#e0a458",
}  # fmt: skip
SELDOM: Final = ("exposed_memory", "rpc_wait")
"""Parts that are not named where there are none."""
MARKS_MAX: Final = 2000
RANKS_APART_MAX: Final = 4
RANKS_SHOWN_MAX: Final = 64
BUCKETS_SHOWN_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Figure:
    """What plotly.js draws, and the sentence under it that says what exactly is shown."""

    key: str
    height_px: int
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    caption: str


def plain(name: str) -> str:
    """A name as plotly must be given it: its texts are markup."""
    return html.escape(name, quote=False)


def ms(values: Iterable[float]) -> list[float]:
    return [round(value / 1e6, 6) for value in values]


def bars(name: str, colour: str, **more: Any) -> dict[str, Any]:
    marker = {"color": COLOURS[colour], "line": {"width": 0}}
    return {"type": "bar", "name": name, "legendgroup": name, "marker": marker, "hoverinfo": "text"} | more


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def layout(**more: Any) -> dict[str, Any]:
    legend = {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    return {"barmode": "stack", "bargap": 0.12, "legend": legend, "margin": {"l": 8, "r": 12, "t": 44, "b": 8}} | more


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
    lengths = [[bar_of(one) for one in panel] for panel in bins]
    top_ns = top_of(lengths)
    names = [name for name, _ in panels]
    axes = steps_axes(names, {} if top_ns is None else {"range": [0, *ms([top_ns])]})
    whole = "Every step of every rank." if apart else f"Mean over {counted(len(ranks), 'rank')}"
    width = bins[0][0].steps if bins[0] else 1
    said = whole if apart and width == 1 else f"{whole.rstrip('.')}, {counted(width, 'step')} per bar."
    height_px = 120 + 190 * len(panels) if len(panels) > 1 else 330
    return Figure("steps", height_px, data, layout(**axes, bargap=0.06, annotations=labels(lengths, top_ns)), (
        f"{said} The parts add up to each step's window exactly.{cut_words(lengths, top_ns)}"
    ))  # fmt: skip


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
    return Bin(min(row.step for row in rows), len({row.step for row in rows}), len(rows), means)


def step_traces(bins: Sequence[Bin], panel: int) -> Iterable[dict[str, Any]]:
    for place, part in enumerate(SPLIT):
        if part in SELDOM and not any(one.means[place] for one in bins):
            continue
        yield bars(
            PART_WORDS[part], part, yaxis="y" if panel == 1 else f"y{panel}", showlegend=panel == 1,
            x=[one.first + (one.steps - 1) / 2 for one in bins], y=ms(one.means[place] for one in bins),
            width=[one.steps * 0.94 for one in bins],
            hovertext=[bin_words(one, part, one.means[place]) for one in bins],
        )  # fmt: skip


def bar_of(one: Bin) -> Bar:
    return Bar(one.first - 0.5, one.first + one.steps - 0.5, sum(one.means), steps_name(one))


def steps_name(one: Bin) -> str:
    return f"step {one.first}" if one.steps == 1 else f"steps {one.first} to {one.first + one.steps - 1}"


def bin_words(one: Bin, part: str, ns: float) -> str:
    whole = sum(one.means)
    share = plain(percent(ns / whole if whole else None))
    return f"{steps_name(one)}: {PART_WORDS[part]} {duration(ns)}, {share} of {duration(whole)}"


def ranks_figure(steps: Sequence[StepRow], names: Sequence[str], key: str, whole: str) -> Figure | None:
    """One stacked bar per rank, mean over `steps`; of many ranks the slowest. `names` are a partition of `whole`."""
    by_rank: dict[int, list[StepRow]] = {}
    for row in steps:
        by_rank.setdefault(row.rank, []).append(row)
    if not by_rank:
        return None
    means = {rank: [mean_ns(rows, name) for name in names] for rank, rows in by_rank.items()}
    shown = sorted(sorted(means, key=lambda rank: -sum(means[rank]))[:RANKS_SHOWN_MAX])
    labels = [f"rank {rank}" for rank in shown]
    data = []
    for place, name in enumerate(names):
        values = [means[rank][place] for rank in shown]
        words = PART_WORDS.get(name, name)
        shares = [plain(percent(means[rank][place] / (sum(means[rank]) or 1))) for rank in shown]
        told = zip(labels, values, shares, strict=True)
        texts = [f"{label}: {words} {duration(value)}, {share}" for label, value, share in told]
        if any(values):
            data.append(bars(words, name, orientation="h", y=labels, x=ms(values), hovertext=texts))
    omitted = f" The {len(shown)} slowest of {len(means)} ranks are shown." if len(shown) < len(means) else ""
    axes = {"yaxis": axis(autorange="reversed", type="category", showgrid=False), "xaxis": axis("ms")}
    caption = f"Mean over the typical steps of each rank; the parts add up to {whole}.{omitted}"
    return Figure(key, 110 + 30 * len(shown), data, layout(**axes, bargap=0.25), caption)


def mean_ns(rows: Sequence[StepRow], name: str) -> float:
    return float(sum(split_ns(row, name) for row in rows) / len(rows))


def phases_figure(steps: Sequence[StepRow]) -> Figure | None:
    return ranks_figure(steps, PHASES, "phases", "the step's wall time")


def parts_figure(steps: Sequence[StepRow]) -> Figure | None:
    return ranks_figure(steps, SPLIT, "ranks", "the step's window")


def buckets_figure(summary: Summary) -> Figure | None:
    """Communication of each bucket in the typical step, hidden and exposed, the most exposed first."""
    known = [bucket for bucket in summary.buckets if bucket.comm_ns]
    shown = known[:BUCKETS_SHOWN_MAX]
    if not shown:
        return None
    several = len({bucket.reducer for bucket in summary.buckets}) > 1
    labels = [bucket_label(bucket, several) for bucket in shown]
    exposed = [min(bucket.exposed_charged_ns or 0, bucket.comm_ns or 0) for bucket in shown]
    rest = [(bucket.comm_ns or 0) - part for bucket, part in zip(shown, exposed, strict=True)]
    texts = [bucket_words(bucket) for bucket in shown]
    places = list(range(len(shown)))
    common = {"orientation": "h", "y": places, "hovertext": texts}
    data = [
        bars("exposed, charged to this bucket", "exposed_comm", x=ms(exposed), **common),
        bars("hidden, or charged to another", "hidden", x=ms(rest), **common),
    ]
    axes = {
        "yaxis": axis(autorange="reversed", tickvals=places, ticktext=labels, showgrid=False),
        "xaxis": axis("ms per step"),
    }
    omitted = f" {len(known) - len(shown)} less exposed buckets are in the table." if len(known) > len(shown) else ""
    caption = f"Mean over the typical steps of all ranks.{omitted}"
    return Figure("buckets", 120 + 26 * len(shown), data, layout(**axes, bargap=0.3), caption)


def bucket_label(bucket: BucketSummary, several_reducers: bool) -> str:
    return named_bucket(bucket.reducer if several_reducers else None, bucket.index, bucket.nbytes)


def bucket_words(bucket: BucketSummary) -> str:
    lines = [
        f"bucket {bucket.index}, {size(bucket.nbytes)}, layout {bucket.layout}",
        f"communication {duration(bucket.comm_ns)}, exposed {duration(bucket.exposed_charged_ns)}",
        plain(some_of(bucket.parameters, 4)),
    ]
    return "<br>".join(lines)
