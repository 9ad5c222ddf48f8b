"""A reducer's bucket layouts: which calls fit them, and when their gradients were ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.execution import Communication
from ddptrace.analysis.intervals import Ints
from ddptrace.load.tables import HookCall, RankRun, Ready, Reducer

_NEVER = np.iinfo(np.int64)

Span = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """One layout of one reducer. The tuples are by bucket index, in launch order."""

    layout: int
    from_backward: int
    names: tuple[tuple[str, ...], ...]
    numels: tuple[int, ...]
    nbytes: tuple[int, ...]
    members: Ints  # the parameters of all buckets, one bucket after another
    offsets: Ints  # where each bucket begins in `members`
    parameter_count: int

    def holds(self, index: int, comm: Communication) -> bool:
        """Whether a call has the bucket's bytes, or those of its half-precision copy (DDP's built-in fp16 hook)."""
        if comm.call is None:
            return False
        is_half = "float16" in comm.call.dtype and comm.call.nbytes_in == 2 * self.numels[index]
        return comm.call.nbytes_in == self.nbytes[index] or is_half

    def match(self, comms: Sequence[Communication]) -> list[Communication] | None:
        """One call per bucket, in order, past calls that do not fit. None unless every bucket has one."""
        found: list[Communication] = []
        for comm in comms:
            if len(found) < len(self.nbytes) and self.holds(len(found), comm):
                found.append(comm)
        return found if found and len(found) == len(self.nbytes) else None

    def ready_spans(self, ready: Ready) -> list[Span]:
        """First and last gradient of each bucket, None where none of its gradients was accumulated."""
        known = (ready.parameters >= 0) & (ready.parameters < self.parameter_count)
        parameters, at = ready.parameters[known], ready.at_ns[known]
        first = np.full(self.parameter_count, _NEVER.max)
        last = np.full(self.parameter_count, _NEVER.min)
        np.minimum.at(first, parameters, at)
        np.maximum.at(last, parameters, at)
        earliest = np.minimum.reduceat(first[self.members], self.offsets).tolist()
        latest = np.maximum.reduceat(last[self.members], self.offsets).tolist()
        return [(a, b) if b != _NEVER.min else (None, None) for a, b in zip(earliest, latest, strict=True)]


class Layouts:
    """All layouts of a rank's reducers, by the backward in which they were valid."""

    def __init__(self, rank: RankRun) -> None:
        self._plans = {reducer.reducer: _plans(reducer) for reducer in rank.reducers}

    def match(
        self, reducer: int, backward: int, comms: Sequence[Communication]
    ) -> tuple[Plan, list[Communication]] | None:
        """The layout that the calls fit, and the call of each bucket."""
        for plan in self._by_preference(reducer, backward):
            found = plan.match(comms)
            if found is not None:
                return plan, found
        return None

    def of_hook(self, hook: HookCall) -> Plan | None:
        """The layout whose bucket a hook was given."""
        for plan in self._by_preference(hook.reducer, hook.backward):
            if hook.index < len(plan.nbytes) and plan.nbytes[hook.index] == hook.nbytes:
                return plan
        return None

    def _by_preference(self, reducer: int, backward: int) -> list[Plan]:
        """Valid in that backward first, then those next to it: a rebuild is told late and may be dated one off."""
        plans = self._plans.get(reducer, [])
        valid = sum(plan.from_backward <= backward for plan in plans) - 1
        return [plans[i] for i in sorted(range(len(plans)), key=lambda i: abs(i - max(valid, 0)))]


def _plans(reducer: Reducer) -> list[Plan]:
    parameters = reducer.parameters
    plans = [
        Plan(
            layout.layout,
            layout.from_backward,
            tuple(tuple(parameters[i].name for i in bucket) for bucket in layout.buckets),
            tuple(sum(parameters[i].numel for i in bucket) for bucket in layout.buckets),
            tuple(sum(parameters[i].nbytes for i in bucket) for bucket in layout.buckets),
            np.array([i for bucket in layout.buckets for i in bucket], np.int64),
            np.cumsum([0, *(len(bucket) for bucket in layout.buckets)])[:-1],
            len(parameters),
        )
        for layout in reducer.layouts
        if layout.buckets and all(layout.buckets)
    ]
    return sorted(plans, key=lambda plan: (plan.from_backward, plan.layout))
