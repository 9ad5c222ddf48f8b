"""A hand-made training with FSDP2 units on a device: the host launches far ahead, and streams wait for each other as
those of torch do. Nothing of it is made by what it tests.

host      ├ gather 0, compute 0, gather 1, compute 1 … ┤
computes           ├ copy 0 ┼ compute 0 ├┄┄┤ copy 1 ┼ compute 1 ┤
sends     [ gather 0 )[ gather 1      )  [ gather 2 )              waits for copy 0
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddptrace.load.tables import Call, Group, RankRun, Run, StepMark, UnitEvent
from ddptrace.schema import Phase, UnitMark, UnitRole
from tests.unit.analysis_records import Piece, comm_piece, gpu_call, gpu_window, rank, run, step
from tests.unit.made_units import MS, UNIT_NBYTES, Plan, unit_of

LAUNCH = MS // 100
COPY = MS // 10
DIVIDE = MS // 100
UPDATE = MS


@dataclass(slots=True)
class _Device:
    """One rank's host, and its streams that compute and send."""

    plan: Plan
    host: int = 0
    computed: int = 0
    sent: int = 0
    may_gather: int = 0  # from when on the stream of gathers goes on
    copied: int = 0  # the last copy of gathered parameters was over
    reduced: int = 0
    calls: list[Call] = field(default_factory=list)
    events: list[UnitEvent] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    steps: list[StepMark] = field(default_factory=list)
    there: dict[int, int] = field(default_factory=dict)  # by unit, when its gather is over
    freed: dict[int, int] = field(default_factory=dict)  # by unit, when its parameters were let go

    def work(self, ns: int) -> None:
        self.pieces.append(Piece(self.computed, self.computed + ns, self._launch()))
        self.computed += ns

    def gather(self, unit: int, phase: Phase) -> None:
        if unit not in self.there and 0 <= unit < len(self.plan.nbytes):
            self.there[unit] = self._send(unit, UnitRole.UNSHARD, phase, max(self.may_gather, self.freed.get(unit, 0)))

    def use(self, unit: int, phase: Phase) -> None:
        begin, is_forward = self.host, phase is Phase.FORWARD
        is_there = unit in self.there and self.there[unit] == 0
        self.gather(unit, phase)
        if not is_there:
            self.computed = max(self.computed, self.there[unit])
            if is_forward:
                self.may_gather = max(self.may_gather, self.copied)
            self.work(COPY)
            self.copied = self.computed
            if not is_forward:
                self.may_gather = max(self.may_gather, self.copied)
            self.there[unit] = 0
        self.events.append(UnitEvent(unit + 1, UnitMark.USE, begin, self._launch()[0], phase))
        ahead, way = (self.plan.ahead, 1) if is_forward else (self.plan.ahead_backward, -1)
        for further in range(1, ahead + 1):
            self.gather(unit + way * further, phase)

    def free(self, unit: int, phase: Phase) -> None:
        self.there.pop(unit, None)
        self.freed[unit] = self.computed
        self.events.append(UnitEvent(unit + 1, UnitMark.FREED, self.host, self.host, phase))

    def reduce(self, unit: int) -> None:
        begin = self.host
        self.computed = max(self.computed, self.reduced)
        self.work(COPY)
        self.reduced = self._send(unit, UnitRole.REDUCE_SCATTER, Phase.BACKWARD, self.computed)
        self.events.append(UnitEvent(unit + 1, UnitMark.READY, begin, self._launch()[0], Phase.BACKWARD))
        self.free(unit, Phase.BACKWARD)

    def run_step(self, ordinal: int) -> None:
        begin, units = self.host, range(len(self.plan.nbytes))
        self.may_gather = self.copied = self.computed
        for unit in units:
            self.use(unit, Phase.FORWARD)
            self.work(self.plan.compute_ms * MS)
            if self.plan.reshards:
                self.free(unit, Phase.FORWARD)
        for unit in reversed(units):
            self.use(unit, Phase.BACKWARD)
            self.work(2 * self.plan.compute_ms * MS)
            self.reduce(unit)
        self.computed = max(self.computed, self.reduced)
        self.work(UPDATE)
        self.steps.append(step(ordinal, begin, self.host))

    def _launch(self) -> tuple[int, int]:
        self.host += LAUNCH
        return self.host - LAUNCH, self.host

    def _send(self, unit: int, role: UnitRole, phase: Phase, ready: int) -> int:
        begin, nbytes = max(self.sent, ready, self.host), self.plan.nbytes[unit] * UNIT_NBYTES
        self.sent = begin + nbytes * MS // UNIT_NBYTES
        launch = self._launch()
        op = "all_gather_into_tensor" if role is UnitRole.UNSHARD else "reduce_scatter_tensor"
        told = {"unit": unit + 1, "role": role, "unit_phase": phase, "origin": "fsdp", "op": op, "is_sync": True}
        sizes = {"nbytes_in": nbytes // 2, "nbytes_out": nbytes}
        self.calls.append(gpu_call(len(self.calls), launch[0], (begin, self.sent), **told, **sizes))
        self.pieces.append(comm_piece(begin, self.sent, launch))
        if role is UnitRole.REDUCE_SCATTER:  # on its own stream the sum is divided by the number of ranks
            self.pieces.append(Piece(self.sent, self.sent + DIVIDE, launch, stream="0:21"))
        return self.sent


def _rank_of(number: int, plan: Plan) -> RankRun:
    device = _Device(plan)
    for ordinal in range(plan.steps):
        device.run_step(ordinal)
    made = rank(
        number,
        steps=device.steps,
        calls=device.calls,
        windows=(gpu_window(0, max(device.host, device.computed, device.sent) + 1, *device.pieces),),
        groups=(Group("0", (0, 1), "nccl", 1),),
    )
    units = tuple(unit_of(at + 1, size, plan) for at, size in enumerate(plan.nbytes))
    return replace(made, device="cuda:0", units=units, unit_events=tuple(device.events))


def device_units_run(plan: Plan) -> Run:
    """Two ranks that do the same."""
    return run(_rank_of(0, plan), _rank_of(1, plan))
