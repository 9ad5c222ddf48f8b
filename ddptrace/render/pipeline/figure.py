"""The picture of a pipeline's schedule: a row for each stage, a bar for each computation of a typical turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from ddptrace.analysis.pipeline.digest import PipelineDigest, pipeline_digests
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.pipeline import PipelineRow, Work
from ddptrace.render.figures import COLOURS, MARKS_MAX, Figure, axis, layout, ms, plain
from ddptrace.units import counted, duration

STAGES_MAX: Final = 64
PX_PER_STAGE: Final = 26
WORDS: Final = {
    Work.FORWARD: ("forward", "forward"),
    Work.BACKWARD: ("backward", "backward"),
    Work.INPUTS: ("backward of the inputs", "backward"),
    Work.WEIGHTS: ("backward of the parameters", "optimizer"),
}
"""By work: its name, and its colour."""


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
    words, colour = WORDS[work]
    return {
        "type": "bar",
        "orientation": "h",
        "name": words,
        "y": [names[row.stage] for row in rows],
        "base": ms(row.begin_at_ns - begin for row in rows),
        "x": ms(row.end_at_ns - row.begin_at_ns for row in rows),
        "hovertext": [plain(f"{words} of microbatch {row.microbatch}: {_told(row)}") for row in rows],
        "hoverinfo": "text",
        "marker": {"color": COLOURS[colour], "line": {"width": 0}},
    }


def _told(row: PipelineRow) -> str:
    return f"{duration(row.end_at_ns - row.begin_at_ns)}, after {duration(row.before_ns)} in which it did not compute"


def _caption(digest: PipelineDigest, shown: int, count: int, first: PipelineRow) -> str:
    some = f" {shown:,} of {count:,} computations." if shown < count else ""
    step = "" if first.step is None else f", in step {first.step}"
    return (
        f"{digest.schedule}, turn {digest.turn}{step}: the one of median length of {counted(digest.turns, 'turn')}."
        f" Where a row is empty, the stage does not compute.{some}"
    )
