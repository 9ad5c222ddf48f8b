"""Finds the units of a file without records: FSDP2 units, pipeline stages, and the gradients that DDP sent.

FSDP2 names its units in its ranges:

FSDP::pre_forward (layers.0)    ├──────────────────────────────┤               a use
  FSDP::all_gather (layers.0)     ├ nccl:all_gather ┤                          its gather
FSDP::pre_backward (layers.1)                                    ├─────────────────────────┤
  FSDP::backward_prefetch for layers.0                             ├─────────────────────┤
    FSDP::all_gather (layers.0)                                      ├ nccl:all_gather ┤

Pipelines name their stages in the ranges of what they do, which schedules of several stages on a rank make:

PP:1F3         ├ waits for its input ┤ forward of microbatch 3 ┤
PP:1SEND_F3                                                      ├ nccl:send ┤        what stage 1 has computed there
PP:0RECV_B2                                                                    ├ nccl:recv ┤
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from ddptrace.load.foreign.calls import Found
from ddptrace.load.foreign.trace import DDP_COPY, DDP_MARKS, Trace
from ddptrace.load.kineto.events import Ints
from ddptrace.load.records.calls import NO_GRADIENT
from ddptrace.load.tables import Call, Intervals, Reducer, Stage, Unit, UnitEvent, UnitKind
from ddptrace.load.windows.device import Mask, operators
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.ops import SEND, family_of
from ddptrace.schema import Evidence, Origin, Phase, UnitMark, UnitRole

FSDP_PREFIX: Final = "FSDP::"
FSDP_RANGE: Final = re.compile(r"FSDP::(?P<what>\w+)(?: \((?P<name>.*)\))?$")
"""The name is missing for the root, and where nobody asks for it."""
ROOT: Final = "(root)"

GATHER, REDUCE = "all_gather", "post_backward_reduce"
PHASE_OF_RANGE: Final = {
    "FSDP::pre_forward": Phase.FORWARD,
    "FSDP::forward_prefetch": Phase.FORWARD,
    "FSDP::pre_backward": Phase.BACKWARD,
    "FSDP::backward_prefetch": Phase.BACKWARD,
}
"""The phase that a gather in such a range is for, by the begin of its name."""
FSDP_EVENTS: Final = {
    "pre_forward": (UnitMark.USE, Phase.FORWARD),
    "pre_backward": (UnitMark.USE, Phase.BACKWARD),
    "post_backward_accumulate": (UnitMark.READY, Phase.BACKWARD),
}
ROLES: Final = {
    "all_gather": UnitRole.UNSHARD,
    "reduce_scatter": UnitRole.REDUCE_SCATTER,
    "all_reduce": UnitRole.ALL_REDUCE,
}


class UnitName(NamedTuple):
    """What a unit is known by in files."""

    kind: UnitKind
    name: str


class NamedUnits(NamedTuple):
    """Units by name, in a file; a unit's number is its place from 1."""

    calls: list[Call]
    names: tuple[UnitName, ...]
    events: tuple[UnitEvent, ...]


# FSDP2 units ----------------------------------------------------------------------------------------------------------


def with_units(trace: Trace, found: Sequence[Found], calls: Sequence[Call]) -> NamedUnits:
    """Return the calls with their units. `found`: the same calls with their threads."""
    ranges = trace.named((FSDP_PREFIX,))
    if not ranges.any():
        return NamedUnits(list(calls), (), ())
    told = {name: match for name in np.unique(trace.events.name[ranges]).tolist() if (match := _told(trace, name))}
    names = tuple(dict.fromkeys(match["name"] or ROOT for match in told.values()))
    numbers = {name: 1 + names.index(match["name"] or ROOT) for name, match in told.items()}
    of_event = trace.events.name
    lanes = np.array([one.lane for one in found], np.int64)
    at = np.array([call.launch_at_ns for call in calls], np.int64)
    issuing = ranges & np.isin(of_event, [name for name, match in told.items() if match["what"] in (GATHER, REDUCE)])
    around = innermost_around(trace.events, issuing, lanes, at).tolist()
    phases = _phases(trace, lanes, at)
    known = [
        call if position == NOTHING else _of_unit(call, numbers[int(of_event[position])], phase)
        for call, position, phase in zip(calls, around, phases, strict=True)
    ]
    named = tuple(UnitName(UnitKind.FSDP, name) for name in names)
    return NamedUnits(known, named, tuple(_events(trace, ranges, told, numbers)))


def _told(trace: Trace, name: int) -> re.Match[str] | None:
    return FSDP_RANGE.match(trace.events.names[name])


def _of_unit(call: Call, unit: int, phase: Phase | None) -> Call:
    role = next((role for begin, role in ROLES.items() if call.op.startswith(begin)), UnitRole.OTHER)
    is_gather = role is UnitRole.UNSHARD
    return dataclasses.replace(call, unit=unit, role=role, unit_phase=phase if is_gather else Phase.BACKWARD)


def _phases(trace: Trace, lanes: Ints, at: Ints) -> Iterator[Phase | None]:
    """The phase that each call serves its unit in, if it is a gather."""
    asking: Mask = trace.named(tuple(PHASE_OF_RANGE))
    for position in innermost_around(trace.events, asking, lanes, at).tolist():
        name = "" if position == NOTHING else trace.name(position)
        yield next((phase for begin, phase in PHASE_OF_RANGE.items() if name.startswith(begin)), None)


def _events(trace: Trace, ranges: Mask, told: dict[int, re.Match[str]], numbers: dict[int, int]) -> Iterator[UnitEvent]:
    marking = ranges & np.isin(
        trace.events.name, [name for name, match in told.items() if match["what"] in FSDP_EVENTS]
    )
    positions = np.flatnonzero(marking)
    for position, (begin, end) in zip(positions.tolist(), trace.spans(positions), strict=True):
        name = int(trace.events.name[position])
        mark, phase = FSDP_EVENTS[told[name]["what"]]
        yield UnitEvent(numbers[name], mark, begin, end, phase)


# Stages of pipelines --------------------------------------------------------------------------------------------------


STAGE_PREFIX: Final = "PP:"
MESSAGE: Final = re.compile(r"PP:(?P<stage>\d+)(?:SEND|RECV)_(?P<way>[FB])(?P<microbatch>\d+)$")
COMPUTATION: Final = re.compile(r"PP:(?P<stage>\d+)(?P<work>[FBIW])(?P<microbatch>\d+)$")
PHASE_OF_WAY: Final = {"F": Phase.FORWARD, "B": Phase.BACKWARD}
MARKS: Final = {"I": UnitMark.COMPUTED_INPUTS, "W": UnitMark.COMPUTED_WEIGHTS}
UNNAMED: Final = "an unnamed schedule"
STAGE: Final = "stage "


def with_stages(trace: Trace, found: Sequence[Found], known: NamedUnits) -> NamedUnits:
    """Return the calls with the stages that they are messages of, beside the units that are known. `found`: the same
    calls with their threads."""
    ranges = trace.named((STAGE_PREFIX,))
    if not ranges.any():
        return known
    events = trace.events
    told = {name: one for name in np.unique(events.name[ranges]).tolist() if (one := MESSAGE.match(events.names[name]))}
    computing = {
        name: one for name in np.unique(events.name[ranges]).tolist() if (one := COMPUTATION.match(events.names[name]))
    }
    numbers = sorted({int(one["stage"]) for one in (*told.values(), *computing.values())})
    units = {stage: len(known.names) + at for at, stage in enumerate(numbers, start=1)}
    messages = ranges & np.isin(events.name, list(told))
    turns = _turns(trace, np.flatnonzero(messages))
    lanes = np.array([one.lane for one in found], np.int64)
    at = np.array([call.launch_at_ns for call in known.calls], np.int64)
    around = innermost_around(events, messages, lanes, at).tolist()
    calls = [
        call if position == NOTHING else _of_stage(call, told[int(events.name[position])], turns[position], units)
        for call, position in zip(known.calls, around, strict=True)
    ]
    names = tuple(UnitName(UnitKind.PIPELINE, f"{STAGE}{stage}") for stage in numbers)
    positions = np.flatnonzero(ranges & np.isin(events.name, list(computing)))
    computed = [] if events.on_device else _computed(trace, positions, computing, units, _received(calls))
    return NamedUnits(calls, (*known.names, *names), (*known.events, *computed))


Message = tuple[int | None, Phase | None, int | None, int | None]
"""Unit, phase, microbatch and turn."""


def _received(calls: Iterable[Call]) -> dict[Message, int]:
    """Return when each message of a stage was there."""
    return {
        (call.unit, call.unit_phase, call.microbatch, call.unit_turn): call.exec.end_at_ns
        for call in calls
        if family_of(call.op) is not SEND and call.exec is not None and call.unit_turn is not None
    }


def _computed(
    trace: Trace,
    positions: Ints,
    told: Mapping[int, re.Match[str]],
    units: Mapping[int, int],
    there: Mapping[Message, int],
) -> Iterator[UnitEvent]:
    """Yield what the stages computed on the host. In the range of a computation it waits for the input first."""
    turns = _turns(trace, positions)
    for position, (begin, end) in zip(positions.tolist(), trace.spans(positions), strict=True):
        one = told[int(trace.events.name[position])]
        unit, work, microbatch, turn = units[int(one["stage"])], one["work"], int(one["microbatch"]), turns[position]
        phase = PHASE_OF_WAY.get(work, Phase.BACKWARD)
        arrived = begin if work == "W" else there.get((unit, phase, microbatch, turn), begin)
        mark = MARKS.get(work, UnitMark.COMPUTED)
        yield UnitEvent(unit, mark, min(max(begin, arrived), end), end, phase, microbatch, turn)


def with_their_stages(units: Iterable[Unit], events: Sequence[UnitEvent]) -> tuple[Unit, ...]:
    """Return units, the stages of a pipeline with what this rank knows of it. On which ranks its other stages are, only
    their files tell."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for event in events:
        if event.microbatch is not None:
            found[event.unit].add(event.microbatch)
    return tuple(
        dataclasses.replace(
            unit, stage=Stage(0, int(unit.module.removeprefix(STAGE)), (), UNNAMED, len(found[unit.unit]))
        )
        if unit.kind is UnitKind.PIPELINE and unit.unit in found
        else unit
        for unit in units
    )


def _turns(trace: Trace, positions: Ints) -> dict[int, int]:
    """Return, by range, how many of its name came before it: its turn of the schedule, counted in this file."""
    seen: Counter[int] = Counter()
    turns: dict[int, int] = {}
    for position in sorted(map(int, positions), key=lambda one: int(trace.events.begin_ns[one])):
        name = int(trace.events.name[position])
        turns[position] = seen[name]
        seen[name] += 1
    return turns


def _of_stage(call: Call, told: re.Match[str], turn: int, units: dict[int, int]) -> Call:
    return dataclasses.replace(
        call,
        unit=units[int(told["stage"])],
        unit_phase=PHASE_OF_WAY[told["way"]],
        microbatch=int(told["microbatch"]),
        unit_turn=turn,
    )


# Gradients that DDP sent ----------------------------------------------------------------------------------------------


REDUCER: Final = 0
"""The number of the one reducer that such a file shows."""


def with_reducer(trace: Trace, backwards: Intervals, found: Sequence[Found]) -> list[Call]:
    """Return DDP's calls: those that the engine launched inside a backward, in a file that shows DDP at work. What a
    compiled graph or a hook without DDP launches there is no bucket."""
    lanes = np.array([one.lane for one in found], np.int64)
    at = np.array([one.call.launch_at_ns for one in found], np.int64)
    by_engine = innermost_around(trace.events, trace.is_node, lanes, at) != NOTHING
    by_engine |= np.isin(lanes, sorted(trace.engine_lanes - {trace.main_lane}))
    native = by_engine & (backward_at(backwards, at) != NOTHING) & trace.has_ddp
    return [_of_reducer(one.call) if native[k] else one.call for k, one in enumerate(found)]


def backward_at(backwards: Intervals, at: np.ndarray) -> np.ndarray:
    """Return the position of the backward around each instant, or NOTHING."""
    if not len(backwards):
        return np.full(len(at), NOTHING, np.int64)
    k = np.searchsorted(backwards[:, 0], at, side="right") - 1
    return np.where((k >= 0) & (at < backwards[k, 1]), k, NOTHING)


def until_copied(trace: Trace, backwards: Intervals, calls: Sequence[Call]) -> list[Call]:
    """Return the calls with executions cut where DDP used their results. Gloo's range stays open for
    longer: a callback in it waits for the interpreter.

    main   launch 0  launch 1 ├┄ waits ┄┤ copies of bucket 0 ├┄┄ waits ┄┄┤ copies of bucket 1
    gloo         ├── exec 0 ───────────┤┄┄┄├────── exec 1 ───────────────┤┄┄┄┄┄┤
    """
    buckets: dict[int, list[int]] = defaultdict(list)
    for k, backward in enumerate(backward_at(backwards, np.array([call.launch_at_ns for call in calls])).tolist()):
        if calls[k].is_native:
            buckets[backward].append(k)
    used = _used_at(trace, backwards, {backward: [calls[k] for k in ks] for backward, ks in buckets.items()})
    until = {k: at for backward, ks in buckets.items() for k, at in zip(ks, used.get(backward, ()), strict=False)}
    return [_until(call, until[k]) if k in until else call for k, call in enumerate(calls)]


def _until(call: Call, at_ns: int) -> Call:
    """Cut a range, unless it began later: then its result cannot have been in use."""
    ran = call.exec
    if ran is None or ran.evidence is not Evidence.BACKEND or not ran.begin_at_ns < at_ns < ran.end_at_ns:
        return call
    return dataclasses.replace(call, exec=dataclasses.replace(ran, end_at_ns=at_ns))


def _used_at(trace: Trace, backwards: Intervals, buckets: Mapping[int, Sequence[Call]]) -> dict[int, list[int]]:
    """Return, by backward, when the result of each of its buckets was in use. Buckets are copied in launch order; if
    their copies cannot be distinguished, all buckets were complete when the last copy began."""
    begins, opens = _copies(trace)
    of, single = backward_at(backwards, begins), _has_one_forward(trace, backwards)
    found = {}
    for backward, calls in buckets.items():
        mine = of == backward
        firsts = begins[mine & opens].tolist()
        if mine.any():
            told = single[backward] and _can_be_over(calls, firsts)
            found[backward] = firsts if told else [int(begins[mine].max())] * len(calls)
    return found


def _can_be_over(calls: Sequence[Call], at_ns: Sequence[int]) -> bool:
    """Each by its instant."""
    pairs = zip(calls, at_ns, strict=False)
    return len(calls) == len(at_ns) and all(call.exec is None or call.exec.begin_at_ns < at for call, at in pairs)


def _copies(trace: Trace) -> tuple[Ints, np.ndarray]:
    """Begins of DDP's copies, and whether each is its bucket's first: other operators of its thread lead to it."""
    events = trace.events
    copies, ops = trace.named((DDP_COPY,)), operators(events)
    found, opens = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    for lane in np.unique(events.lane[copies]).tolist():
        begins, ends = (at[copies & (events.lane == lane)] for at in (events.begin_ns, events.end_ns))
        at = events.begin_ns[ops & (events.lane == lane)]
        found.append(begins)
        opens.append(np.append(True, np.searchsorted(at, begins[1:]) > np.searchsorted(at, ends[:-1])))
    return np.concatenate(found), np.concatenate(opens)


def _has_one_forward(trace: Trace, backwards: Intervals) -> list[bool]:
    """Group by backward: two modules under DDP launch their buckets mixed and copy them module by module."""
    forwards = trace.events.begin_ns[trace.named(DDP_MARKS[:1])]
    before = np.searchsorted(forwards, backwards[:, 0])
    return [count <= 1 for count in np.diff(before, prepend=0).tolist()]


def _of_reducer(call: Call) -> Call:
    if call.op != "all_reduce":
        return call
    if call.dtype.startswith(NO_GRADIENT):
        return dataclasses.replace(call, origin=Origin.UNUSED_PARAMETERS.word)
    return dataclasses.replace(call, is_native=True, reducer=REDUCER, origin=Origin.GRADIENTS.word)


# All files of a rank --------------------------------------------------------------------------------------------------


def units_of(names: Sequence[UnitName], calls: Sequence[Call]) -> tuple[Unit, ...]:
    """Return the units of a rank. Nothing tells their parameters; what is gathered in backward was let go before."""
    again = {call.unit for call in calls if call.role is UnitRole.UNSHARD and call.unit_phase is Phase.BACKWARD}
    return tuple(
        Unit(number, kind, name, reshards=number in again if kind is UnitKind.FSDP else None, is_root=name == ROOT)
        for number, (kind, name) in enumerate(names, start=1)
    )


def reducers_of(calls: Sequence[Call], kind: str) -> tuple[Reducer, ...]:
    """Return one reducer, without parameters or layouts, if any call belongs to a reducer. `kind`: its wrapper."""
    groups = Counter(call.group for call in calls if call.is_native)
    if not groups:
        return ()
    return (Reducer(REDUCER, kind, "", groups.most_common(1)[0][0], None, (), ()),)
