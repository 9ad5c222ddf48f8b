"""A hand-made training with FSDP2 units on two ranks, on one time line: what hides what is known to the nanosecond.

forward     use 0 [gather 0)[compute 0)use 1 [gather 1)[compute 1) ...       ahead 0
            use 0 [gather 0)[compute 0)use 1 [compute 1) ...                 ahead 1
                            [gather 1)  [gather 2)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ddptrace.load.tables import (
    Call,
    Group,
    PhaseMark,
    RankRun,
    Run,
    StepMark,
    Unit,
    UnitEvent,
    UnitGroup,
    UnitKind,
    UnitParameter,
)
from ddptrace.schema import Phase, UnitMark, UnitRole
from tests.unit.analysis_records import call, mark, rank, run, step, window

MS = 1_000_000
UNIT_NBYTES = 100_000


@dataclass(frozen=True, slots=True)
class Plan:
    """`nbytes`: of each unit in order of forward, in `UNIT_NBYTES`, each of which takes a millisecond to send."""

    nbytes: tuple[int, ...] = (2, 2, 2, 2)
    compute_ms: int = 4  # of a unit in forward; twice in backward
    ahead: int = 0  # units that gathers are launched ahead, in forward
    ahead_backward: int = 1
    blocks: bool = False  # the host waits for each gather at once
    reshards: bool = True
    steps: int = 4
    micro_steps: int = 1  # forwards and backwards of one step
    reduces: bool = True  # in each of them; otherwise in the last


def unit_of(number: int, size: int, plan: Plan) -> Unit:
    name = f"blocks.{number - 1}"
    parameters = tuple(
        UnitParameter(f"{name}.{what}.weight", "float32", size * UNIT_NBYTES // 2, size * UNIT_NBYTES // 4)
        for what in ("up", "down")
    )
    return Unit(number, UnitKind.FSDP, name, parameters, (UnitGroup("0", "dp_shard", UnitRole.OTHER),), plan.reshards)


@dataclass(slots=True)
class _Line:
    """One rank's time line while it is made."""

    plan: Plan
    at: int = 0  # of the host
    free: int = 0  # of the communicator
    seq: int = 0
    calls: list[Call] = field(default_factory=list)
    events: list[UnitEvent] = field(default_factory=list)
    phases: list[PhaseMark] = field(default_factory=list)
    steps: list[StepMark] = field(default_factory=list)
    compute: list[tuple[int, int]] = field(default_factory=list)
    there: dict[int, int] = field(default_factory=dict)  # by unit, when its parameters are

    def send(self, unit: int, role: UnitRole, phase: Phase) -> int:
        """Launch a collective of a unit; return when it is over."""
        begin = max(self.at, self.free)
        nbytes = self.plan.nbytes[unit] * UNIT_NBYTES
        self.free, self.seq = begin + nbytes * MS // UNIT_NBYTES, self.seq + 1
        op = "all_gather_into_tensor" if role is UnitRole.UNSHARD else "reduce_scatter_tensor"
        told = {"unit": unit + 1, "role": role, "unit_phase": phase, "origin": "fsdp", "op": op}
        sizes = {"nbytes_in": nbytes // 2, "nbytes_out": nbytes}
        is_sync = self.plan.blocks and role is UnitRole.UNSHARD
        self.calls.append(call(self.seq, self.at, ran=(begin, self.free), is_sync=is_sync, **told, **sizes))
        if is_sync:
            self.at = self.free
        return self.free

    def gather(self, unit: int, phase: Phase) -> None:
        if unit not in self.there and 0 <= unit < len(self.plan.nbytes):
            self.there[unit] = self.send(unit, UnitRole.UNSHARD, phase)

    def use(self, unit: int, phase: Phase, ahead: int, compute_ms: int) -> None:
        """Wait for a unit's parameters, launch the gathers of those after it, and compute."""
        begin, way = self.at, 1 if phase is Phase.FORWARD else -1
        self.gather(unit, phase)
        self.at = max(self.at, self.there[unit])
        self.events.append(UnitEvent(unit + 1, UnitMark.USE, begin, self.at, phase))
        for further in range(1, ahead + 1):
            self.gather(unit + way * further, phase)
        self.compute.append((self.at, self.at + compute_ms * MS))
        self.at += compute_ms * MS

    def free_of(self, unit: int, phase: Phase) -> None:
        self.there.pop(unit, None)
        self.events.append(UnitEvent(unit + 1, UnitMark.FREED, self.at, self.at, phase))

    def run_step(self, number: int) -> None:
        begin = self.at
        for nth in range(1, self.plan.micro_steps + 1):
            is_last = nth == self.plan.micro_steps
            self.run_micro_step(self.plan.micro_steps * number + nth - 1, reduces=self.plan.reduces or is_last)
        self.steps.append(step(number, begin, self.at))

    def run_micro_step(self, number: int, *, reduces: bool) -> None:
        begin, plan, units = self.at, self.plan, range(len(self.plan.nbytes))
        for unit in units:
            self.use(unit, Phase.FORWARD, plan.ahead, plan.compute_ms)
            if plan.reshards:
                self.free_of(unit, Phase.FORWARD)
        middle = self.at
        for unit in reversed(units):
            self.use(unit, Phase.BACKWARD, plan.ahead_backward, 2 * plan.compute_ms)
            self.events.append(UnitEvent(unit + 1, UnitMark.READY, self.at, self.at, Phase.BACKWARD))
            self.free_of(unit, Phase.BACKWARD)
            if reduces:
                self.send(unit, UnitRole.REDUCE_SCATTER, Phase.BACKWARD)
        self.at = max(self.at, self.free)
        self.phases += [mark(Phase.FORWARD, begin, middle), mark(Phase.BACKWARD, middle, self.at, number)]


def rank_of(number: int, plan: Plan, **fields: Any) -> RankRun:
    line = _Line(plan)
    for ordinal in range(plan.steps):
        line.run_step(ordinal)
    units = tuple(unit_of(at + 1, size, plan) for at, size in enumerate(plan.nbytes))
    known = {
        "steps": tuple(line.steps),
        "phases": tuple(line.phases),
        "calls": tuple(line.calls),
        "windows": (window(0, line.at, *line.compute),),
        "groups": (Group("0", (0, 1), "gloo", 1),),
    }
    made = rank(number, **(known | fields))
    return replace(made, units=units, unit_events=tuple(line.events))


def units_run(plan: Plan) -> Run:
    """Two ranks that do the same."""
    return run(rank_of(0, plan), rank_of(1, plan))
