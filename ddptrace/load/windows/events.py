"""One window's Kineto events on the run's time axis, beside the calls that were recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddptrace.load.kineto.events import Ints, KinetoEvents
from ddptrace.load.tables import Call
from ddptrace.schema import RANGE_PREFIX

OwnRange = tuple[int, int, int]  # begin, end, seq


@dataclass(frozen=True)
class WindowEvents:
    """`begin_ns` and `end_ns` of `events` count from the run's zero here."""

    events: KinetoEvents
    calls: Mapping[int, Call]  # by seq

    @classmethod
    def of(cls, events: KinetoEvents, calls: Sequence[Call], unix_to_at: Callable[[Ints], Ints]) -> WindowEvents:
        at = unix_to_at(np.column_stack((events.begin_ns, events.end_ns)))  # at once, so that one offset holds for all
        moved = dataclasses.replace(events, begin_ns=at[:, 0], end_ns=at[:, 1])
        return cls(moved, {call.seq: call for call in calls})

    def name(self, event: int) -> str:
        return self.events.names[int(self.events.name[event])]

    def issued_by(self, chosen: Ints) -> dict[int, int]:
        """Return, for each chosen event that begins inside a call's range on the same thread, the seq of that call."""
        found: dict[int, int] = {}
        for lane, ranges in self._own_ranges.items():
            mine = chosen[self.events.lane[chosen] == lane]
            last = np.searchsorted([begin for begin, _, _ in ranges], self.events.begin_ns[mine], side="right") - 1
            for event, k in zip(mine.tolist(), last.tolist(), strict=True):
                if k >= 0 and self.events.begin_ns[event] < ranges[k][1]:
                    found[event] = ranges[k][2]
        return found

    @cached_property
    def _own_ranges(self) -> dict[int, list[OwnRange]]:
        """By lane, the ranges that carry the seq of a recorded call, in order of their begin."""
        seqs = {i: int(text) for i, name in enumerate(self.events.names) if (text := _seq_text(name)).isdecimal()}
        found: dict[int, list[OwnRange]] = {}
        for event in np.flatnonzero(np.isin(self.events.name, list(seqs))).tolist():
            seq = seqs[int(self.events.name[event])]
            if seq in self.calls:
                span = (int(self.events.begin_ns[event]), int(self.events.end_ns[event]), seq)
                found.setdefault(int(self.events.lane[event]), []).append(span)
        return found


def _seq_text(name: str) -> str:
    return name.removeprefix(RANGE_PREFIX) if name.startswith(RANGE_PREFIX) else ""
