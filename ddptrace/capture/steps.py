"""Steps and phases, found from what the program does: it runs modules, calls backward, and updates.

updates      ┄┄┄u          ┄┄┄u u           ┄┄┄
forwards     F    B   opt  F    B   opt opt F
steps        ├── step 0 ──┤├──── step 1 ───┤├──    a step ends with the last update before the next forward,
                                                   so it is only known to have ended when that one begins
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from ddptrace.record import Recorder
from ddptrace.schema import Kind, Phase, StepEnd

_now = time.perf_counter_ns


class StepFinder:
    """Turns begins and ends into PHASE and STEP records.

    A STEP is written at each update and written again when a later update turns out to belong to it: the later record
    replaces the earlier, so that a killed process leaves its last whole step behind. `on_step` is told once a step, as
    soon as it had as many updates as the one before it, else when the next one begins.
    """

    def __init__(self, recorder: Recorder, begin: int) -> None:
        self.inside = False  # in an outermost forward or backward: what nests in it is a part of it
        self.backwards = 0
        self.on_step: Callable[[], None] = lambda: None
        self._recorder = recorder
        self._home = threading.get_ident()
        self._ordinals = dict.fromkeys(StepEnd, 0)
        self._begin = dict.fromkeys(StepEnd, begin)
        self._pending: StepEnd | None = None  # an update, or failing that a backward, since the last forward
        self._pending_end = begin
        self._updates = 0  # of the pending step
        self._expected = 0  # of the step before it
        self._told = False  # on_step was called for the pending step
        self._optimizes = False
        self._forwards = 0
        self._said = False

    def data(self, begin: int) -> None:
        """The program waited for data, from `begin` to now."""
        if threading.get_ident() == self._home:
            self._recorder.event(Kind.PHASE, Phase.DATA, 0, begin, _now())

    def data_begins(self) -> None:
        if threading.get_ident() == self._home and not self.inside:
            self._separate()

    def forward_begins(self) -> int:
        """A forward outside every other, or inside an update (its closure): either way a new iteration."""
        self._home = threading.get_ident()
        self._forwards += 1
        self._separate()
        return _now()

    def forward_ends(self, begin: int) -> None:
        self._recorder.event(Kind.PHASE, Phase.FORWARD, 0, begin, _now())

    def backward_begins(self) -> int:
        self._home = threading.get_ident()
        if not self._forwards:  # a model without modules: only backwards tell steps apart
            self._separate()
        return _now()

    def backward_ends(self, begin: int) -> None:
        end = _now()
        self._recorder.event(Kind.PHASE, Phase.BACKWARD, 0, begin, end, self.backwards)
        self.backwards += 1
        if not self._optimizes:
            self._mark(StepEnd.BACKWARD, end)

    def update_ends(self, begin: int) -> None:
        end = _now()
        self._recorder.event(Kind.PHASE, Phase.OPTIMIZER, 0, begin, end)
        self._optimizes = True
        self._updates += 1
        self._mark(StepEnd.OPTIMIZER, end)
        if self._updates == self._expected and not self.inside:
            self._tell()

    def say(self) -> None:
        """The program itself says that a step is over."""
        self._said = True
        self._mark(StepEnd.SAID, _now())
        self._pending = None
        self._next(StepEnd.SAID)
        self.on_step()

    def _mark(self, ended_by: StepEnd, end: int) -> None:
        self._pending, self._pending_end = ended_by, end
        self._recorder.event(Kind.STEP, ended_by, 0, self._begin[ended_by], end, self._ordinals[ended_by])

    def _next(self, ended_by: StepEnd) -> None:
        self._ordinals[ended_by] += 1
        self._begin[ended_by] = self._pending_end

    def _separate(self) -> None:
        """A new iteration begins: the pending step is over."""
        ended_by, self._pending = self._pending, None
        if ended_by is None:
            return
        if ended_by is StepEnd.BACKWARD:  # what an update by hand did after backward belongs to this step
            self._mark(ended_by, _now())
            self._pending = None
        self._next(ended_by)
        if ended_by is StepEnd.OPTIMIZER or self._updates_by_hand():
            self._tell()
        self._told = False
        self._expected, self._updates = self._updates, 0

    def _tell(self) -> None:
        if not (self._told or self._said):
            self._told = True
            self.on_step()

    def _updates_by_hand(self) -> bool:
        """Whether the program has no optimizer at all: torch marks the step of a class at its first instance."""
        ahead: list[type[torch.optim.Optimizer]] = [torch.optim.Optimizer]
        while ahead:
            kind = ahead.pop()
            if getattr(kind.step, "hooked", False):
                return False
            ahead += kind.__subclasses__()
        return True
