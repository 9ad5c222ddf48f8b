"""The stages of pipelines in a file without records, by the ranges of their messages, which schedules of several stages
on a rank make.

PP:1SEND_F3    ├ nccl:send ┤        stage 1 sends what it computed in forward of microbatch 3
PP:0RECV_B2                  ├ nccl:recv ┤
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddptrace.load.foreign.calls import Found
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.foreign.units import NamedUnits, UnitName
from ddptrace.load.tables import Call, UnitKind
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.schema import Phase

PREFIX: Final = "PP:"
MESSAGE: Final = re.compile(r"PP:(?P<stage>\d+)(?:SEND|RECV)_(?P<way>[FB])(?P<microbatch>\d+)$")
PHASES: Final = {"F": Phase.FORWARD, "B": Phase.BACKWARD}


def with_stages(trace: Trace, found: Sequence[Found], known: NamedUnits) -> NamedUnits:
    """Return the calls with the stages that they are messages of, beside the units that are known. `found`: the same
    calls with their threads."""
    ranges = trace.named((PREFIX,))
    if not ranges.any():
        return known
    events = trace.events
    told = {name: one for name in np.unique(events.name[ranges]).tolist() if (one := MESSAGE.match(events.names[name]))}
    numbers = sorted({int(one["stage"]) for one in told.values()})
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
    names = tuple(UnitName(UnitKind.PIPELINE, f"stage {stage}") for stage in numbers)
    return NamedUnits(calls, (*known.names, *names), known.events)


def _turns(trace: Trace, positions: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, int]:
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
        unit_phase=PHASES[told["way"]],
        microbatch=int(told["microbatch"]),
        unit_turn=turn,
    )
