"""Tells what each stage of one rank computed when, and matches the messages between stages.

Of the sends and receives of all ranks, the k-th from one rank to another in a group is the k-th there, of a pipeline's
microbatch the k-th of that:

rank 0   send ├──────────── blocked ────────────┤
rank 1                    recv ├──── blocked ───┤
                               both have come: from here on it is a transfer
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.parallelism import MessageRow, PipelineRow, Work
from ddptrace.load.tables import Call, DeviceEvents, Stage, Unit, UnitEvent
from ddptrace.ops import SEND, family_of
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


# Messages -------------------------------------------------------------------------------------------------------------


Kinship = tuple[str, int, int, int | None, str | None, int | None]
"""Group, source, destination; of a pipeline, turn, phase and microbatch."""
MessageKey = tuple[str, int, int, int | None, str | None, int | None, int]
"""The same, and which of these it is, from 0."""


def message_rows(view: RankView) -> Iterator[MessageRow]:
    """One rank's sends and receives whose other end is known, in launch order. Profiler files of two ranks need not
    begin with the same message, so theirs are left out."""
    if not view.rank.recorded:
        return
    calls = [call for call in view.rank.calls if call.peer is not None and family_of(call.op).is_message]
    steps = view.steps.at(np.array([call.launch_at_ns for call in calls], np.int64)).tolist()
    counts: Counter[Kinship] = Counter()
    own, arrivals = view.rank.rank, Arrivals(view)
    for call, step in zip(calls, steps, strict=True):
        peer = call.peer if call.peer is not None else own
        source, destination = (own, peer) if family_of(call.op) is SEND else (peer, own)
        phase = None if call.unit_phase is None else call.unit_phase.name.lower()
        kin = call.group, source, destination, call.unit_turn, phase, call.microbatch
        begin, end = _blocked(call)
        yield MessageRow(
            own,
            view.ordinal(step),
            call.seq,
            call.op,
            *kin,
            counts[kin],
            max(call.nbytes_in, call.nbytes_out),
            call.unit,
            call.launch_at_ns,
            arrivals.of(call),
            begin,
            end,
        )
        counts[kin] += 1


def _blocked(call: Call) -> tuple[int | None, int | None]:
    """When the rank began to wait for a message, and went on; on a device, its compute stream."""
    spans = call.waits
    if call.on_device:
        spans = tuple((wait.begin_at_ns, wait.end_at_ns) for wait in call.stream_waits if wait.of_marks)
    return min((begin for begin, _ in spans), default=None), max((end for _, end in spans), default=None)


class Arrivals:
    """When a rank came to its messages, so that they could begin as far as it is concerned: at the launch. A device
    comes to them once it has computed what was launched before."""

    def __init__(self, view: RankView) -> None:
        found = computations(view) if view.is_on_device else []
        self._over = [one.event.end_at_ns for one in found]
        self._ends = [one.end_at_ns for one in found]

    def of(self, call: Call) -> int | None:
        """None where nothing tells what the device computed."""
        if not call.on_device:
            return call.launch_at_ns
        place = bisect_right(self._over, call.launch_at_ns)
        return max(call.launch_at_ns, self._ends[place - 1]) if place else None


def matched_messages(ranks: Sequence[tuple[RankFacts, Sequence[MessageRow]]]) -> tuple[MessageRow, ...]:
    """Return the messages of all ranks, each with the call that it met. Those of a pipeline are known by their turn and
    microbatch. Of others, calls of a rank are not counted along if some are missing, or name no sender."""
    counted = {facts.rank for facts, _ in ranks if _is_counted(facts)}
    keyed = [(_key(row, counted), row) for _, mine in ranks for row in mine]
    sides: dict[bool, dict[MessageKey, MessageRow]] = {True: {}, False: {}}
    for key, row in keyed:
        if key is not None:
            sides[family_of(row.op) is SEND][key] = row
    return tuple(
        row if key is None else with_other(row, sides[family_of(row.op) is not SEND].get(key)) for key, row in keyed
    )


def _is_counted(facts: RankFacts) -> bool:
    is_whole = facts.recorded and not facts.dropped and not facts.kept.let_go and not facts.kept.sampled
    return is_whole and not facts.receives_from_any


def _key(row: MessageRow, counted: Container[int]) -> MessageKey | None:
    if row.turn is not None or row.rank in counted:
        return row.group, row.source, row.destination, row.turn, row.phase, row.microbatch, row.nth
    return None


def with_other(row: MessageRow, other: MessageRow | None) -> MessageRow:
    if other is None:
        return row
    begin, end, arrived = row.wait_begin_at_ns, row.wait_end_at_ns, other.arrived_at_ns
    peer_wait = transfer = None
    if begin is not None and end is not None and arrived is not None:
        peer_wait = min(max(arrived, begin), end) - begin
        transfer = end - begin - peer_wait
    return replace(row, other_seq=other.seq, other_arrived_at_ns=arrived, peer_wait_ns=peer_wait, transfer_ns=transfer)
