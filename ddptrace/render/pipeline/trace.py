"""A pipeline in the trace: a track for each stage of a rank, with its computations.

pipeline stage 0   | forward 0 | forward 1 |           | backward 0 |      | backward 1 |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Final

from ddptrace.analysis.tables.pipeline import PipelineRow, Work
from ddptrace.render.trace.lanes import Slice, Track, lay_out
from ddptrace.render.trace.slices import measured

COLOURS: Final = {
    Work.FORWARD: "rail_response",
    Work.BACKWARD: "rail_animation",
    Work.INPUTS: "rail_animation",
    Work.WEIGHTS: "rail_load",
}


def stage_tracks(rows: Iterable[PipelineRow]) -> Iterator[Track]:
    """Yield the tracks of one rank."""
    stages: defaultdict[tuple[int, int], list[PipelineRow]] = defaultdict(list)
    for row in rows:
        stages[row.pipeline, row.stage].append(row)
    several = len({pipeline for pipeline, _ in stages}) > 1
    for (pipeline, stage), mine in sorted(stages.items()):
        name = f"pipeline {pipeline} stage {stage}" if several else f"pipeline stage {stage}"
        yield from lay_out(name, [(computation_slice(row),) for row in mine])


def computation_slice(row: PipelineRow) -> Slice:
    name = f"{row.work} {row.microbatch}"
    args = measured(asdict(row).items())
    return Slice(name, "pipeline", row.begin_at_ns, row.end_at_ns, args, COLOURS[Work(row.work)])
