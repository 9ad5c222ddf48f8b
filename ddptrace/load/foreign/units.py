"""The units of FSDP2 in a file without records, by the ranges that `fully_shard` puts around what it does for each.

FSDP::pre_forward (layers.0)    ├──────────────────────────────┤               a use
  FSDP::all_gather (layers.0)     ├ nccl:all_gather ┤                          its gather
FSDP::pre_backward (layers.1)                                    ├─────────────────────────┤
  FSDP::backward_prefetch for layers.0                             ├─────────────────────┤
    FSDP::all_gather (layers.0)                                      ├ nccl:all_gather ┤
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from ddptrace.load.foreign.calls import Found
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.kineto.events import Ints
from ddptrace.load.tables import Call, Unit, UnitEvent, UnitKind
from ddptrace.load.windows.device import Mask
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.schema import Phase, UnitMark, UnitRole

PREFIX: Final = "FSDP::"
RANGE: Final = re.compile(r"FSDP::(?P<what>\w+)(?: \((?P<name>.*)\))?$")
"""The name is missing for the root, and where nobody asks for it."""
ROOT: Final = "(root)"

GATHER, REDUCE = "all_gather", "post_backward_reduce"
PHASES: Final = {
    "FSDP::pre_forward": Phase.FORWARD,
    "FSDP::forward_prefetch": Phase.FORWARD,
    "FSDP::pre_backward": Phase.BACKWARD,
    "FSDP::backward_prefetch": Phase.BACKWARD,
}
"""The phase that a gather in such a range is for, by the begin of its name."""
EVENTS: Final = {
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


def with_units(trace: Trace, found: Sequence[Found], calls: Sequence[Call]) -> NamedUnits:
    """Return the calls with their units. `found`: the same calls with their threads."""
    ranges = trace.named((PREFIX,))
    if not ranges.any():
        return NamedUnits(list(calls), (), ())
    told = {name: match for name in np.unique(trace.events.name[ranges]).tolist() if (match := _read(trace, name))}
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


def _read(trace: Trace, name: int) -> re.Match[str] | None:
    return RANGE.match(trace.events.names[name])


def _of_unit(call: Call, unit: int, phase: Phase | None) -> Call:
    role = next((role for begin, role in ROLES.items() if call.op.startswith(begin)), UnitRole.OTHER)
    is_gather = role is UnitRole.UNSHARD
    return dataclasses.replace(call, unit=unit, role=role, unit_phase=phase if is_gather else Phase.BACKWARD)


def _phases(trace: Trace, lanes: Ints, at: Ints) -> Iterator[Phase | None]:
    """The phase that each call serves its unit in, if it is a gather."""
    asking: Mask = trace.named(tuple(PHASES))
    for position in innermost_around(trace.events, asking, lanes, at).tolist():
        name = "" if position == NOTHING else trace.name(position)
        yield next((phase for begin, phase in PHASES.items() if name.startswith(begin)), None)


def _events(trace: Trace, ranges: Mask, told: dict[int, re.Match[str]], numbers: dict[int, int]) -> Iterator[UnitEvent]:
    marking = ranges & np.isin(trace.events.name, [name for name, match in told.items() if match["what"] in EVENTS])
    positions = np.flatnonzero(marking)
    for position, (begin, end) in zip(positions.tolist(), trace.spans(positions), strict=True):
        name = int(trace.events.name[position])
        mark, phase = EVENTS[told[name]["what"]]
        yield UnitEvent(numbers[name], mark, begin, end, phase)


# All files of a rank --------------------------------------------------------------------------------------------------


def units_of(names: Sequence[UnitName], calls: Sequence[Call]) -> tuple[Unit, ...]:
    """Return the units of a rank. Nothing tells their parameters; what is gathered in backward was let go before."""
    again = {call.unit for call in calls if call.role is UnitRole.UNSHARD and call.unit_phase is Phase.BACKWARD}
    return tuple(
        Unit(number, kind, name, reshards=number in again if kind is UnitKind.FSDP else None, is_root=name == ROOT)
        for number, (kind, name) in enumerate(names, start=1)
    )
