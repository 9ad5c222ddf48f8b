"""What one rank did for its FSDP units in each step, taken apart so that a setting can put it together anew.

host     ├ work ┼ use of a ┼ work ┼ use of b ┼ work ┼ gradients of b ┼ work ┼ gradients of a ┼ work ┤
use        ├ copy in, gather ┄ waits ┄ copy out ┤        waits are left out: the model makes them
gradients  ├ copy in, reduce-scatter ┄ waits ┄ copy out ┤

On a device its stream works and waits instead of the host, by the `clock` of this room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple, TypeVar

import numpy as np

from ddptrace.analysis.intervals import Pieces, pairs
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.units.clock import Clock, clock_of
from ddptrace.load.tables import Call, Unit, UnitEvent, UnitKind
from ddptrace.schema import Phase, UnitMark, UnitRole

MARKS: Final = (UnitMark.USE, UnitMark.READY, UnitMark.FREED)


class Mark(NamedTuple):
    """Something that the host does for a unit. Of a use, the phase tells which."""

    unit: int
    mark: UnitMark
    phase: Phase


Structure = tuple[Mark, ...]
"""What a step does for its units, in order."""
GatherKey = tuple[int, Phase]
One = TypeVar("One")


@dataclass(slots=True)
class StepScript:
    """One step of one rank. `before_ns`: work before each mark of the structure, and after the last; copies in and out
    are what gathers and reductions cost the host, or the device's stream."""

    step: int
    wall_ns: int
    structure: Structure
    before_ns: list[int] = field(default_factory=list)
    in_ns: dict[GatherKey, int] = field(default_factory=dict)  # of a gather
    out_ns: dict[GatherKey, int] = field(default_factory=dict)
    reduce_in_ns: dict[int, int] = field(default_factory=dict)
    reduce_out_ns: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankScript:
    """The steps of one rank with FSDP units. `ahead`: how many units ahead of its use a gather was launched, by phase;
    `is_async`: the host went on after a gather."""

    rank: int
    on_device: bool
    units: Mapping[int, Unit]
    steps: tuple[StepScript, ...]
    ahead: Mapping[Phase, int]
    is_async: bool
    is_separate: bool  # reductions have a process group of their own
    gather_ratio: float  # bytes gathered for each byte of parameters
    reduce_ratio: float
    refusal: str | None = None  # why its steps cannot be played again


def script_of(view: RankView, chosen: Container[int] | None = None) -> RankScript | None:
    """Take apart the steps of a rank, or the chosen ones alone; None if it has no FSDP units."""
    units = {unit.unit: unit for unit in view.rank.units if unit.kind is UnitKind.FSDP}
    if not units:
        return None
    clock = clock_of(view, [call for call in view.rank.calls if call.unit in units])
    steps = [one for one in clock.steps if one.ordinal > 0 and (chosen is None or one.ordinal in chosen)]
    spans = Pieces.numbered(pairs((one.begin_at_ns, one.end_at_ns) for one in steps))
    marks = [one for one in view.rank.unit_events if one.unit in units and one.mark in MARKS]
    events = _within(sorted(marks, key=lambda one: (one.begin_at_ns, -one.end_at_ns)), spans, _begin)
    calls = _within([call for call in view.rank.calls if call.unit in units], spans, _launch)
    found = [_step(one.ordinal, (one.begin_at_ns, one.end_at_ns), events, calls, clock) for one in steps]
    usual = Counter(one.structure for one in found).most_common(1)
    alike = tuple(one for one in found if one.structure and one.structure == usual[0][0])
    gathers = [call for call in calls if call.role is UnitRole.UNSHARD]
    reductions = {call.group for call in calls if call.role is UnitRole.REDUCE_SCATTER}
    return RankScript(
        view.rank.rank,
        view.is_on_device,
        {
            number: unit
            for number, unit in units.items()
            if alike and number in {one.unit for one in alike[0].structure}
        },
        alike,
        _ahead(events, gathers),
        any(not call.is_sync for call in gathers),
        bool(reductions) and reductions.isdisjoint(call.group for call in gathers),
        _ratio(gathers, units),
        _ratio([call for call in calls if call.role is UnitRole.REDUCE_SCATTER], units),
        _refusal(calls, alike),
    )


def _within(items: Sequence[One], spans: Pieces, at_ns: Callable[[One], int]) -> list[One]:
    """Those in any of the steps."""
    inside = spans.at(np.array([at_ns(one) for one in items], np.int64)) >= 0
    return [one for one, is_inside in zip(items, inside.tolist(), strict=True) if is_inside]


def _begin(event: UnitEvent) -> int:
    return event.begin_at_ns


def _launch(call: Call) -> int:
    return call.launch_at_ns


def _ratio(calls: Sequence[Call], units: Mapping[int, Unit]) -> float:
    """Bytes of their larger sides, to those of their units' parameters."""
    whole = sum(units[call.unit].nbytes for call in calls if call.unit is not None)
    return sum(max(call.nbytes_in, call.nbytes_out) for call in calls) / whole if whole else 1.0


def _refusal(calls: Sequence[Call], steps: Sequence[StepScript]) -> str | None:
    if not steps:
        return "no whole step uses FSDP units"
    if any(call.role is UnitRole.ALL_REDUCE for call in calls):
        return "gradients are also reduced among replicas, which the model of FSDP units does not have"
    if not any(mark.mark is UnitMark.READY for mark in steps[0].structure):
        return "no gradients of FSDP units are reduced in its steps"
    return None


def _step(
    ordinal: int, span: tuple[int, int], events: Sequence[UnitEvent], calls: Sequence[Call], clock: Clock
) -> StepScript:
    mine = _between(calls, *span)
    marks = _without_empty(_outermost([one for one in events if span[0] <= one.begin_at_ns < span[1]]), mine)
    script = StepScript(ordinal, clock.at_ns(span[1]) - clock.at_ns(span[0]), tuple(_mark(one) for one in marks))
    at = span[0]
    for one in marks:
        script.before_ns.append(_ahead_of(script, _between(mine, at, one.begin_at_ns), at, one.begin_at_ns, clock))
        inside = _between(mine, one.begin_at_ns, one.end_at_ns)
        _copies(script, _mark(one), one, inside[0].launch_at_ns if inside else one.begin_at_ns, clock)
        at = one.end_at_ns
    script.before_ns.append(_ahead_of(script, _between(mine, at, span[1]), at, span[1], clock))
    return script


def _ahead_of(script: StepScript, calls: Sequence[Call], begin: int, end: int, clock: Clock) -> int:
    """Note what gathers ahead of their use cost the host, and return the rest of its work between two marks."""
    for call in calls:
        if call.role is UnitRole.UNSHARD and call.unit is not None:
            script.in_ns[call.unit, call.unit_phase or Phase.FORWARD] = clock.worked_ns(begin, call.launch_at_ns)
            begin = call.launch_at_ns
    return clock.worked_ns(begin, end)


def _copies(script: StepScript, mark: Mark, event: UnitEvent, launch_at_ns: int, clock: Clock) -> None:
    before = clock.worked_ns(event.begin_at_ns, launch_at_ns)
    after = clock.worked_ns(launch_at_ns, event.end_at_ns)
    if mark.mark is UnitMark.READY:
        script.reduce_in_ns[mark.unit], script.reduce_out_ns[mark.unit] = before, after
    elif mark.mark is UnitMark.USE:
        script.out_ns[mark.unit, mark.phase] = after
        if launch_at_ns > event.begin_at_ns:
            script.in_ns[mark.unit, mark.phase] = before


def _between(calls: Sequence[Call], begin: int, end: int) -> list[Call]:
    return [call for call in calls if begin <= call.launch_at_ns < end]


def _outermost(events: Sequence[UnitEvent]) -> list[UnitEvent]:
    """Leave out what lies inside another: gradients of a unit let go of its parameters."""
    found: list[UnitEvent] = []
    for one in events:
        if not found or one.begin_at_ns >= found[-1].end_at_ns:
            found.append(one)
    return found


def _without_empty(marks: Sequence[UnitEvent], calls: Sequence[Call]) -> list[UnitEvent]:
    """Leave out gradients that are ready with nothing to reduce, of units that reduced once for each use in backward:
    at the end torch looks again at units of several modules."""
    used = Counter(one.unit for one in marks if one.mark is UnitMark.USE and one.phase is Phase.BACKWARD)
    reduced = Counter(call.unit for call in calls if call.role is UnitRole.REDUCE_SCATTER)
    return [
        one
        for one in marks
        if one.mark is not UnitMark.READY
        or reduced[one.unit] != used[one.unit]
        or any(call.unit == one.unit for call in _between(calls, one.begin_at_ns, one.end_at_ns))
    ]


def _mark(event: UnitEvent) -> Mark:
    return Mark(event.unit, event.mark, event.phase if event.phase is Phase.BACKWARD else Phase.FORWARD)


def _ahead(events: Sequence[UnitEvent], gathers: Sequence[Call]) -> dict[Phase, int]:
    """How many units ahead gathers are launched in each phase: those with enough units before them tell it."""
    uses = [one for one in events if one.mark is UnitMark.USE]
    found: defaultdict[Phase, list[int]] = defaultdict(list)
    for call in gathers:
        phase = call.unit_phase or Phase.FORWARD
        begun = sum(one.begin_at_ns <= call.launch_at_ns for one in uses)
        own = next(
            (at for at, one in enumerate(uses) if one.unit == call.unit and one.end_at_ns > call.launch_at_ns), None
        )
        if own is not None:
            found[phase].append(max(0, own - (begun - 1)))
    return {phase: round(median(distances)) for phase, distances in found.items()}


def shared_steps(ranks: Sequence[RankScript]) -> Iterator[tuple[StepScript, ...]]:
    """Yield the steps that all ranks recorded alike, each with the scripts of all ranks."""
    of = [{one.step: one for one in rank.steps} for rank in ranks]
    for step in sorted(set.intersection(*(set(one) for one in of))):
        scripts = tuple(one[step] for one in of)
        if len({script.structure for script in scripts}) == 1:
            yield scripts
