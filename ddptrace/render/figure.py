"""The report's pictures as plain data: what plotly.js is given. Numbers in, no files, no HTML.

Every picture has a bounded number of marks, whatever the run's size. Text that plotly shows goes through `plain`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.analysis.summary import PHASES, BucketSummary, Summary
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.errors import printable
from ddptrace.render.rpc_words import SPLIT, split_ns
from ddptrace.render.words import PARTS as PART_WORDS
from ddptrace.render.words import both_ends, named_bucket, some_of
from ddptrace.units import duration, percent, size

COLOURS: Final = {
    "compute": "#3f8f8b", "exposed_comm": "#e4683a", "exposed_memory": "#9a6fb8", "idle": "rgba(134,142,153,0.32)",
    "hidden": "#86b6d9", "comm": "#86b6d9", "memory": "#9a6fb8", "queue": "#d9b44a",
    "gradients": "rgba(134,142,153,0.45)",
    "data": "#d9b44a", "forward": "#7fb2c9", "backward": "#41729f", "optimizer": "#7a9e59",
    "other": "rgba(134,142,153,0.32)", "rpc_wait": "#e0a458", "unseen": "rgba(134,142,153,0.16)", "band": "#b5485d",
}  # fmt: skip
SELDOM: Final = ("exposed_memory", "rpc_wait", "unseen")
"""Parts that are not named where there are none."""
MARKS_MAX: Final = 2000
RANKS_SHOWN_MAX: Final = 24
BUCKETS_SHOWN_MAX: Final = 24
NAME_MAX: Final = 300
FEW_DECADES: Final = 300


@dataclass(frozen=True, slots=True)
class Figure:
    """What plotly.js draws, and the sentence under it that says what exactly is shown."""

    key: str
    height_px: int
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    caption: str


def clipped(name: str, most: int) -> str:
    """A name from outside, shown as it is: of a long one both ends, signs that turn or break a line by their number."""
    return printable(both_ends(name, most))


def plain(name: str) -> str:
    """A name as plotly must be given it: its texts are markup."""
    return html.escape(clipped(name, NAME_MAX), quote=False)


def ms(values: Iterable[float]) -> list[float]:
    return [round(value / 1e6, 6) for value in values]


def bars(name: str, colour: str, **more: Any) -> dict[str, Any]:
    marker = {"color": COLOURS[colour], "line": {"width": 0}}
    return {"type": "bar", "name": name, "legendgroup": name, "marker": marker, "hoverinfo": "text"} | more


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def decades(title: str, values: Sequence[float], **more: Any) -> dict[str, Any]:
    """A logarithmic axis; where its values span little, with ticks at 2 and 5 too."""
    few = max(values) < FEW_DECADES * min(values)
    return axis(title, type="log", dtick="D2" if few else 1, tickformat=",.3~r") | more


def layout(**more: Any) -> dict[str, Any]:
    legend = {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    return {"barmode": "stack", "bargap": 0.12, "legend": legend, "margin": {"l": 8, "r": 12, "t": 44, "b": 8}} | more


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
    omitted = others_words([sum(means[rank]) for rank in means if rank not in shown], len(means))
    axes = {"yaxis": axis(autorange="reversed", type="category", showgrid=False), "xaxis": axis("ms")}
    caption = f"Mean over the typical steps of each rank; the parts add up to {whole}.{omitted}"
    return Figure(key, 110 + 26 * len(shown), data, layout(**axes, bargap=0.25), caption)


def others_words(lengths: Sequence[float], ranks: int) -> str:
    """Of the ranks that are not shown."""
    if not lengths:
        return ""
    ends = f"{duration(min(lengths))} to {duration(max(lengths))}"
    return f" The {ranks - len(lengths)} slowest of {ranks} ranks; steps of the others take {ends}."


def mean_ns(rows: Sequence[StepRow], name: str) -> float:
    return float(sum(split_ns(row, name) for row in rows) / len(rows))


def phases_figure(steps: Sequence[StepRow]) -> Figure | None:
    """None where nothing marked a phase."""
    if not any(getattr(row, f"{phase}_ns") for row in steps for phase in PHASES if phase != "other"):
        return None
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
