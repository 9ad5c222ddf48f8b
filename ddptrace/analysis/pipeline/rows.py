"""What each stage of one rank computed when."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.pipeline import PipelineRow, Work
from ddptrace.load.tables import Unit, UnitEvent
from ddptrace.schema import Phase, UnitMark

BACKWARDS: Final = {
    UnitMark.COMPUTED: Work.BACKWARD,
    UnitMark.COMPUTED_INPUTS: Work.INPUTS,
    UnitMark.COMPUTED_WEIGHTS: Work.WEIGHTS,
}


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """One pipeline as one of its ranks describes it."""

    ranks: tuple[int, ...]  # global rank of each stage
    schedule: str  # its class
    microbatches: int


def pipeline_facts(units: Iterable[Unit]) -> tuple[PipelineFacts, ...]:
    """Return the pipelines of a rank, in the order of their numbers on it."""
    stages = [unit.stage for unit in units if unit.stage is not None]
    found = {stage.pipeline: PipelineFacts(stage.ranks, stage.schedule, stage.microbatches) for stage in stages}
    return tuple(facts for _, facts in sorted(found.items()))


def pipeline_rows(view: RankView) -> Iterator[PipelineRow]:
    """One rank's computations, in time order. `pipeline` is its number on the rank. Computations on a device have none:
    the host only launches them."""
    stages = {unit.unit: unit.stage for unit in view.rank.units if unit.stage is not None}
    numbers = {number: at for at, number in enumerate(sorted({stage.pipeline for stage in stages.values()}))}
    if view.is_on_device:
        return
    for event in _computations(view, stages.keys()):
        stage, work = stages[event.unit], _work(event)
        step = view.steps.at(np.array([event.begin_at_ns])).item()
        if work is not None and event.microbatch is not None and event.turn is not None:
            yield PipelineRow(
                view.rank.rank,
                view.ordinal(step),
                numbers[stage.pipeline],
                event.turn,
                stage.number,
                event.microbatch,
                work.value,
                event.begin_at_ns,
                event.end_at_ns,
            )


def _computations(view: RankView, units: Container[int]) -> Iterator[UnitEvent]:
    """In time order. What a stage computes of one microbatch in several parts, as its output and then the loss, is
    one."""
    events = [event for event in view.rank.unit_events if event.unit in units and event.mark in BACKWARDS]
    for _, parts in groupby(events, key=lambda one: (one.unit, one.turn, one.microbatch, one.mark, one.phase)):
        first, *rest = parts
        yield replace(first, end_at_ns=rest[-1].end_at_ns) if rest else first


def _work(event: UnitEvent) -> Work | None:
    if event.phase is Phase.FORWARD:
        return Work.FORWARD
    return BACKWARDS[event.mark] if event.phase is Phase.BACKWARD else None
