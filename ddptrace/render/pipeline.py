"""Pipelines for the terminal, the report and the trace: the schedule of a typical turn, and where each rank's time
goes in it.

In: `pipeline` and `bubbles` of a `Result`, as digests. Out: lines, a section, the schedule drawn, and in the trace a
track for each stage of a rank, with its computations:

pipeline stage 0   | forward 0 | forward 1 |           | backward 0 |      | backward 1 |
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from ddptrace.analysis.pipeline.digest import PARTS, PipelineDigest, RankTurn, pipeline_digests
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.parallelism import PipelineRow, Work
from ddptrace.render.figure import COLOURS, MARKS_MAX, Figure, axis, layout, ms, plain
from ddptrace.render.markup import section, table, text
from ddptrace.render.trace.slices import Slice, Track, lay_out, measured
from ddptrace.render.words import WIDTH
from ddptrace.units import counted, duration, millis, percent

MOST_PIPELINES: Final = 2
MOST_RANKS: Final = 8
PART_HEADS: Final = ("compute", "bubble", "slow stage", "transfer", "other")
"""Of `PARTS`."""

ROWS_MAX: Final = 64
PIPELINES_MAX: Final = 8
SUB: Final = (
    "Where the time of each rank goes in a typical turn of the schedule, from the first computation of any stage to the"
    " last. A bubble is what the schedule implies; what a slow stage costs comes on top of it."
)
TABLE_HEADS: Final = (("rank", ""), ("stages", "words"), ("turn ms", ""), *((f"{head} ms", "") for head in PART_HEADS))

STAGES_MAX: Final = 64
PX_PER_STAGE: Final = 26
WORK_WORDS: Final = {
    Work.FORWARD: ("forward", "forward"),
    Work.BACKWARD: ("backward", "backward"),
    Work.INPUTS: ("backward of the inputs", "backward"),
    Work.WEIGHTS: ("backward of the parameters", "optimizer"),
}
"""By work: its name, and its colour in the figure."""
WORK_COLOURS: Final = {
    Work.FORWARD: "rail_response",
    Work.BACKWARD: "rail_animation",
    Work.INPUTS: "rail_animation",
    Work.WEIGHTS: "rail_load",
}
"""By work: its colour in the trace."""


def pipeline_lines(result: Result) -> Iterator[str]:
    """Nothing where no turn of a pipeline is known whole."""
    digests = pipeline_digests(result)
    for digest in digests[:MOST_PIPELINES]:
        number = f" {digest.pipeline}" if len(digests) > 1 else ""
        yield from textwrap.wrap(f"Pipeline{number}  {turn_words(digest)}", WIDTH, subsequent_indent="  ")
        yield f"  {'rank':<6} {'stages':<10}" + "".join(f" {head + ' ms':>13}" for head in PART_HEADS)
        for rank in digest.ranks[:MOST_RANKS]:
            parts = "".join(f" {millis(getattr(rank, part)):>13}" for part in PARTS)
            yield f"  {rank.rank:<6} {', '.join(map(str, rank.stages)):<10}{parts}"
        if len(digest.ranks) > MOST_RANKS:
            yield f"  … and {len(digest.ranks) - MOST_RANKS} more ranks in the table `bubbles`"
    if len(digests) > MOST_PIPELINES:
        yield f"  … and {len(digests) - MOST_PIPELINES} more pipelines in the report"


def turn_words(digest: PipelineDigest) -> str:
    microbatches = counted(digest.microbatches, "microbatch", "microbatches")
    return (
        f"{digest.schedule} · {counted(digest.stages, 'stage')} · {microbatches} · turn {duration(digest.window_ns)}"
        f" (mean of {digest.turns}), bubble {percent(digest.bubble_ns / digest.window_ns)}; with equal stages and free"
        f" messages {duration(digest.ideal_window_ns)}, bubble"
        f" {percent(digest.ideal_bubble_ns / digest.ideal_window_ns if digest.ideal_window_ns else None)}"
    )


def pipeline_section(result: Result, picture: str) -> str:
    digests = pipeline_digests(result)
    parts = [part for digest in digests[:PIPELINES_MAX] for part in _pipeline_parts(digest)]
    some = f" The first {PIPELINES_MAX} of {len(digests):,} pipelines." if len(digests) > PIPELINES_MAX else ""
    return section("Pipelines", SUB + some, picture, *parts) if digests else ""


def _pipeline_parts(digest: PipelineDigest) -> list[str]:
    some = f" The first {ROWS_MAX} of {len(digest.ranks):,} ranks." if len(digest.ranks) > ROWS_MAX else ""
    words = f"<p class='sub'>{text(turn_words(digest) + '.' + some)}</p>"
    return [words, table(TABLE_HEADS, map(_rank_cells, digest.ranks[:ROWS_MAX]))]


def _rank_cells(rank: RankTurn) -> list[str]:
    times = (rank.window_ns, *(getattr(rank, part) for part in PARTS))
    return [f"{rank.rank}", text(", ".join(map(str, rank.stages))), *map(millis, times)]


def pipeline_figure(result: Result) -> Figure | None:
    """Draw the first pipeline; None if no turn of a pipeline is known whole."""
    digest = next(iter(pipeline_digests(result)), None)
    if digest is None:
        return None
    mine = [row for row in result.pipeline if row.pipeline == digest.pipeline and row.turn == digest.turn]
    mine.sort(key=attrgetter("begin_at_ns"))
    stages = sorted({row.stage for row in mine})[:STAGES_MAX]
    shown = list(islice((row for row in mine if row.stage in stages), MARKS_MAX))
    begin = mine[0].begin_at_ns
    names = {row.stage: f"stage {row.stage} · rank {row.rank}" for row in mine}
    data = [
        _bars(work, [row for row in shown if row.work == work], begin, names)
        for work in Work
        if any(row.work == work for row in shown)
    ]
    axes = {
        "yaxis": axis(
            autorange="reversed",
            type="category",
            showgrid=False,
            categoryorder="array",
            categoryarray=[names[stage] for stage in stages],
        ),
        "xaxis": axis("ms"),
    }
    sheet = layout(**axes, bargap=0.2) | {"barmode": "overlay"}
    return Figure(
        "pipeline", 120 + PX_PER_STAGE * len(stages), data, sheet, _caption(digest, len(shown), len(mine), mine[0])
    )


def _bars(work: Work, rows: Sequence[PipelineRow], begin: int, names: dict[int, str]) -> dict[str, Any]:
    words, colour = WORK_WORDS[work]
    return {
        "type": "bar",
        "orientation": "h",
        "name": words,
        "y": [names[row.stage] for row in rows],
        "base": ms(row.begin_at_ns - begin for row in rows),
        "x": ms(row.end_at_ns - row.begin_at_ns for row in rows),
        "hovertext": [plain(f"{words} of microbatch {row.microbatch}: {_length_words(row)}") for row in rows],
        "hoverinfo": "text",
        "marker": {"color": COLOURS[colour], "line": {"width": 0}},
    }


def _length_words(row: PipelineRow) -> str:
    return f"{duration(row.end_at_ns - row.begin_at_ns)}, after {duration(row.before_ns)} in which it did not compute"


def _caption(digest: PipelineDigest, shown: int, count: int, first: PipelineRow) -> str:
    some = f" {shown:,} of {count:,} computations." if shown < count else ""
    step = "" if first.step is None else f", in step {first.step}"
    return (
        f"{digest.schedule}, turn {digest.turn}{step}: the one of median length of {counted(digest.turns, 'turn')}."
        f" Where a row is empty, the stage does not compute.{some}"
    )


def stage_tracks(rows: Iterable[PipelineRow]) -> Iterator[Track]:
    """Yield the tracks of one rank."""
    stages: defaultdict[tuple[int, int], list[PipelineRow]] = defaultdict(list)
    for row in rows:
        stages[row.pipeline, row.stage].append(row)
    several = len({pipeline for pipeline, _ in stages}) > 1
    for (pipeline, stage), mine in sorted(stages.items()):
        name = f"pipeline {pipeline} stage {stage}" if several else f"pipeline stage {stage}"
        yield from lay_out(name, [(_computation_slice(row),) for row in mine])


def _computation_slice(row: PipelineRow) -> Slice:
    name = f"{row.work} {row.microbatch}"
    args = measured(asdict(row).items())
    return Slice(name, "pipeline", row.begin_at_ns, row.end_at_ns, args, WORK_COLOURS[Work(row.work)])
