"""Exchanges of experts in a file without records, as DeepEP's: which direction they serve is told by the range around.

dispatch(F)              ├ notify ┤├ dispatch ┤               tokens go to their experts
combine(F)                                      ├ combine ┤   and come back
combine(B)               ├ dispatch ┤                         in backward the kernel of the other way runs
FusedDispatchBackward    ├ combine ┤
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddptrace.load.foreign.calls import Found
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.foreign.units import NamedUnits, UnitName
from ddptrace.load.tables import Call, UnitKind
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.schema import Origin, Phase

RANGE: Final = re.compile(r"(?P<what>dispatch|combine)(?P<way>\((?:F|B)\)|[\W_]?(?:forward|backward))?$", re.IGNORECASE)
"""The end of the name of a range around an exchange: "dispatch(F)", "moe.token_combine", "FusedDispatchBackward"."""
BACKWARDS: Final = ("(B)", "BACKWARD")


def with_experts(trace: Trace, found: Sequence[Found], known: NamedUnits) -> NamedUnits:
    """Return the calls with the exchanges that they are part of, beside the units that are known. `found`: the same
    calls with their threads."""
    mine = [call.origin == Origin.MOE.word and call.unit is None for call in known.calls]
    if not any(mine):
        return known
    events = trace.events
    names = np.unique(events.name[trace.on_host]).tolist()
    told = {name: match for name in names if (match := RANGE.search(events.names[name]))}
    whats = sorted({match["what"].lower() for match in told.values()})
    units = {what: len(known.names) + at for at, what in enumerate(whats, start=1)}
    lanes = np.array([one.lane for one in found], np.int64)
    at = np.array([call.launch_at_ns for call in known.calls], np.int64)
    around = innermost_around(events, trace.on_host & np.isin(events.name, list(told)), lanes, at).tolist()
    calls = [
        _of_exchange(call, told[int(events.name[position])], units) if is_mine and position != NOTHING else call
        for call, position, is_mine in zip(known.calls, around, mine, strict=True)
    ]
    return NamedUnits(calls, (*known.names, *(UnitName(UnitKind.EXPERT, what) for what in whats)), known.events)


def _of_exchange(call: Call, told: re.Match[str], units: dict[str, int]) -> Call:
    way = (told["way"] or "").upper()
    phase = None if not way else Phase.BACKWARD if way.endswith(BACKWARDS) else Phase.FORWARD
    return dataclasses.replace(call, unit=units[told["what"].lower()], unit_phase=phase)
