"""What each stage of one rank computed when."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.pipeline import PipelineRow, Work
from ddptrace.load.tables import DeviceEvents, Stage, Unit, UnitEvent
from ddptrace.schema import DeviceMark, Phase, UnitMark

BACKWARDS: Final = {
    UnitMark.COMPUTED: Work.BACKWARD,
    UnitMark.COMPUTED_INPUTS: Work.INPUTS,
    UnitMark.COMPUTED_WEIGHTS: Work.WEIGHTS,
}

EDGES: Final[Mapping[Phase | None, tuple[DeviceMark, DeviceMark]]] = {
    Phase.FORWARD: (DeviceMark.FORWARD_BEGIN, DeviceMark.FORWARD_END),
    Phase.BACKWARD: (DeviceMark.BACKWARD_BEGIN, DeviceMark.BACKWARD_END),
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
    """One rank's computations, in time order. `pipeline` is its number on the rank."""
    stages = _stages(view)
    numbers = {number: at for at, number in enumerate(sorted({stage.pipeline for stage in stages.values()}))}
    found = computations(view)
    steps = view.steps.at(np.array([one.event.begin_at_ns for one in found], np.int64)).tolist()
    for one, step in zip(found, steps, strict=True):
        event, stage, work = one.event, stages[one.event.unit], _work(one.event)
        if work is not None and event.microbatch is not None and event.turn is not None:
            yield PipelineRow(
                view.rank.rank,
                view.ordinal(step),
                numbers[stage.pipeline],
                event.turn,
                stage.number,
                event.microbatch,
                work.value,
                one.begin_at_ns,
                one.end_at_ns,
            )


@dataclass(frozen=True, slots=True)
class Computation:
    """One computation of a stage: what the host did, and when it ran, which on a device is later."""

    event: UnitEvent
    begin_at_ns: int
    end_at_ns: int


def computations(view: RankView) -> list[Computation]:
    """Return what a rank's stages computed, in time order. On a device, where the host only launches, those that have
    events."""
    events = list(_on_host(view, _stages(view).keys()))
    if not view.is_on_device:
        return [Computation(event, event.begin_at_ns, event.end_at_ns) for event in events]
    marks = view.rank.device_events
    return [] if marks is None else list(_on_device(events, marks))


def _stages(view: RankView) -> dict[int, Stage]:
    """By unit."""
    return {unit.unit: unit.stage for unit in view.rank.units if unit.stage is not None}


def _on_host(view: RankView, units: Container[int]) -> Iterator[UnitEvent]:
    """In time order. What a stage computes of one microbatch in several parts, as its output and then the loss, is
    one."""
    events = [event for event in view.rank.unit_events if event.unit in units and event.mark in BACKWARDS]
    for _, parts in groupby(events, key=lambda one: (one.unit, one.turn, one.microbatch, one.mark, one.phase)):
        first, *rest = parts
        yield replace(first, end_at_ns=rest[-1].end_at_ns) if rest else first


def _on_device(events: Iterable[UnitEvent], marks: DeviceEvents) -> Iterator[Computation]:
    """Of each, when the compute stream came to the marks of its phase that the host placed meanwhile."""
    order = np.argsort(marks.placed_at_ns, kind="stable")
    mark, placed, at = marks.mark[order], marks.placed_at_ns[order], marks.at_ns[order]
    for event in events:
        if event.phase not in EDGES:
            continue
        inside = slice(*np.searchsorted(placed, (event.begin_at_ns, event.end_at_ns)).tolist())
        first, last = EDGES[event.phase]
        begins, ends = at[inside][mark[inside] == first], at[inside][mark[inside] == last]
        if len(begins) and len(ends):
            yield Computation(event, int(begins[0]), int(ends[-1]))


def _work(event: UnitEvent) -> Work | None:
    if event.phase is Phase.FORWARD:
        return Work.FORWARD
    return BACKWARDS[event.mark] if event.phase is Phase.BACKWARD else None
