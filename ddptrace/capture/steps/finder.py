"""Steps and phases, found from what the program does: it runs modules, calls backward, and updates parameters.

updates      ┄┄┄u          ┄┄┄u u           ┄┄┄
forwards     F    B   opt  F    B   opt opt F
steps        ├── step 0 ──┤├──── step 1 ───┤├──    a step ends with the last update before the next forward,
                                                   so its end is known only when that one begins

Several threads may run modules. A thread that trains another model beside the first training is left out: a step is an
update of one training.

`ddptrace.Keep` may want only one step in N:

updates     u             u             u             u
forwards      F             F             F             F
steps       ┤     99      ├    100      ├    101      ├
recorded                  [===============)               on with the update before it, off with the forward after it
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.autograd.profiler as autograd_profiler
from torch._C import _current_graph_task_id

from ddptrace.capture.device.stalls import Fetches
from ddptrace.capture.device.timed_events import DeviceTimer
from ddptrace.capture.steps.updates import BACKWARD, DATA, FORWARD, OPTIMIZER, OUTSIDE, FirstTraining, Here, Updated
from ddptrace.capture.surface import Surface
from ddptrace.record import Recorder
from ddptrace.schema import DeviceMark, Kind, Phase, StepEnd
from ddptrace.trace_options import Keep

_now = time.perf_counter_ns


class Thread(NamedTuple):
    """A thread as Python knows it, and as the system does."""

    ident: int
    native: int


class StepFinder:
    """Turns begins and ends into PHASE and STEP records.

    A STEP is written at each update and written again when a later update turns out to belong to it: the later record
    replaces the earlier, so that a killed process leaves its last whole step behind.

    `on_step` is called once a step: as soon as it has had as many updates as the step before it, else when the next one
    begins. `on_end` is called once a step too: as soon as its first update has ended, before the choice whether to
    record the next step. A forward or backward that is not the training's has None as its begin; do not report its end.
    """

    def __init__(self, recorder: Recorder, begin: int, sampling: Sampling) -> None:
        self.sampling = sampling
        self.here = Here()
        self.backwards = 0
        self.device: DeviceTimer | None = None  # that the training computes on, once it is known
        self.fetches: Fetches | None = None  # for that device
        self.on_step: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self._recorder = recorder
        self.thread = Thread(threading.get_ident(), threading.get_native_id())  # the training's, as far as known
        self.doing = OUTSIDE  # what that thread is in, for other threads to read
        self._around = OUTSIDE  # the update that a forward or backward is in, as its closure
        self._ordinals = dict.fromkeys(StepEnd, 0)
        self._begin = dict.fromkeys(StepEnd, begin)
        self._pending: StepEnd | None = None  # an update, or failing that a backward, since the last forward
        self._pending_end = begin
        self._updates = 0  # of the pending step
        self._updated = Updated()  # in it
        self._expected = 0  # of the step before it
        self._told = False  # on_step was called for the pending step
        self._optimizes = False
        self._forwards = 0
        self._said = False
        self._busy = False  # some thread is in an outermost forward or backward
        self._training = FirstTraining(self.here, recorder.note)

    def is_nested(self) -> bool:
        """Whether the calling thread runs within a forward or backward that it, or autograd's engine, has begun."""
        return self.here.inside != OUTSIDE or _current_graph_task_id() >= 0

    def is_within_backward(self) -> bool:
        """Whether the calling thread runs within a backward or a wait for data. A backward inside a forward counts for
        itself: a framework may pass its whole training step to the model, to be called as the model is."""
        return self.here.inside in (DATA, BACKWARD) or _current_graph_task_id() >= 0

    def data(self, begin: int, batch: object) -> None:
        """The program waited for data, from `begin` to now."""
        if threading.get_ident() == self.thread.ident:
            if self.fetches is not None:
                self.fetches.ends(batch)
            self.doing = self._inside() or self._around
            self._phase(Phase.DATA, begin, _now())

    def data_begins(self) -> None:
        if threading.get_ident() != self.thread.ident:
            return
        if not self.here.inside:
            self._separate()
        self.doing = DATA
        if self.fetches is not None:
            self.fetches.begins()

    def forward_begins(self) -> int | None:
        """An outermost forward begins, or one inside an update (its closure): either way a new iteration. A forward
        beside what another thread runs is a part of that (a replica), or not the training's: then return None."""
        if self.here.is_apart or (self._busy and not self.here.trains):
            return None
        self._enter()
        self._forwards += 1
        self._separate()
        self.doing = FORWARD
        if self.device is not None:
            self.device.forward_begins()
        begin = self.here.forward = _now()
        return begin

    def forward_ends(self, begin: int) -> None:
        """It ends, unless a backward inside it has ended it before."""
        if self.here.forward == begin:
            self.here.forward = None
            self._busy = False
            self.doing = self._around
            self._phase(Phase.FORWARD, begin, _now())
            if self.device is not None:
                self.device.mark(DeviceMark.FORWARD_END)

    def backward_begins(self) -> int | None:
        self.here.trains = True
        if self.here.is_apart:
            return None
        if self.here.forward is not None:
            self.forward_ends(self.here.forward)
        self._enter()
        if not self._forwards:  # a model without modules: only backwards tell steps apart
            self._separate()
        self.doing = BACKWARD
        if self.device is not None:
            self.device.backward_begins()
        return _now()

    def backward_ends(self, begin: int) -> None:
        end = _now()
        self._busy = False
        self.doing = self._around
        self._phase(Phase.BACKWARD, begin, end, self.backwards)
        self.backwards += 1
        if self.device is not None:
            self.device.mark(DeviceMark.BACKWARD_END)
        if not self._optimizes:
            self._mark(StepEnd.BACKWARD, end)

    def update_begins(self) -> None:
        if threading.get_ident() == self.thread.ident:
            self.doing = self._around = OPTIMIZER
            if self.device is not None:
                self.device.update_begins()

    def update_ends(self, begin: int, updated: object) -> None:
        """`updated`: the outermost optimizer, or the one that a scaler was to step."""
        end = _now()
        if threading.get_ident() == self.thread.ident:
            self._around, self.doing = OUTSIDE, self._inside()
        if not self._training.owns(updated):
            return
        if self.device is not None:
            self.device.update_ends()
        self._phase(Phase.OPTIMIZER, begin, end)
        self._optimizes = True
        self._updates += 1
        self._updated.by(updated)
        is_first = self._pending is not StepEnd.OPTIMIZER and not self._said
        self._mark(StepEnd.OPTIMIZER, end, self._recorder.intern(self._updated.text), self._updated.bits)
        if self._updates == self._expected and not self._busy:
            self._tell()
        if is_first:
            self.on_end()
        self._sample(end)

    def say(self) -> None:
        """End a step where the program says so: `t.step()`."""
        self._said = True
        self._mark(StepEnd.SAID, _now())
        self._pending = None
        self._next(StepEnd.SAID)
        self.on_step()
        self.on_end()
        self._sample(self._pending_end)

    def _inside(self) -> int:
        """Return what the calling thread is in; a forward that a backward inside it has ended does not count."""
        inside = self.here.inside
        return OUTSIDE if inside == FORWARD and self.here.forward is None else inside

    def _enter(self) -> None:
        self._busy = True
        ident = threading.get_ident()
        if ident != self.thread.ident:
            self.thread = Thread(ident, threading.get_native_id())

    def _mark(self, ended_by: StepEnd, end: int, by: int = 0, bits: int = 0) -> None:
        self._pending, self._pending_end = ended_by, end
        begin = self._begin[ended_by]
        partial = not self.sampling.covers(begin)
        self._recorder.event(Kind.STEP, ended_by, by, begin, end, self._ordinals[ended_by], partial, e=bits)

    def _phase(self, phase: Phase, begin: int, end: int, backward: int = 0) -> None:
        if self.sampling.live:
            self._recorder.event(Kind.PHASE, phase, 0, begin, end, backward)

    def _sample(self, at: int) -> None:
        """Choose whether to record from `at` on: the running step, or the next one if an update has just ended.

        Before the first update of an optimizer nothing is paused: only backwards could be counted, and a step may have
        several of them.
        """
        if not (self._optimizes or self._said or self._updates_by_hand()):
            return
        ended_by = StepEnd.SAID if self._said else StepEnd.OPTIMIZER if self._optimizes else StepEnd.BACKWARD
        step = self._ordinals[ended_by]
        self.sampling.choose(step, step + (self._pending is ended_by), at)

    def _next(self, ended_by: StepEnd) -> None:
        self._ordinals[ended_by] += 1
        self._begin[ended_by] = self._pending_end

    def _separate(self) -> None:
        """A new iteration begins: the pending step is over."""
        ended_by, self._pending = self._pending, None
        if ended_by is None:
            return
        at = _now()
        if ended_by is StepEnd.BACKWARD:  # what an update by hand did after backward belongs to this step
            self._mark(ended_by, at)
            self._pending = None
        self._next(ended_by)
        if ended_by is StepEnd.OPTIMIZER or self._updates_by_hand():
            self._tell()
        self._told = False
        self._expected, self._updates = self._updates, 0
        self._updated.clear()
        if ended_by is StepEnd.BACKWARD:
            self.on_end()
        self._sample(at)

    def _tell(self) -> None:
        if not (self._told or self._said):
            self._told = True
            self.on_step()

    def _updates_by_hand(self) -> bool:
        """Whether the program has no optimizer at all: torch marks the `step` of a class at its first instance."""
        ahead: list[type[torch.optim.Optimizer]] = [torch.optim.Optimizer]
        while ahead:
            kind = ahead.pop()
            if getattr(kind.step, "hooked", False):
                return False
            ahead += kind.__subclasses__()
        return True


class Sampling:
    """Pauses surfaces between recorded steps, the same ones on all ranks. Steps under a profiler are always
    recorded."""

    def __init__(self, keep: Keep, surfaces: Sequence[Surface]) -> None:
        self.live = True
        self._keep = keep
        self._surfaces = surfaces
        self._since = -1  # live without a break since then

    def covers(self, begin: int) -> bool:
        """Whether everything since `begin` was recorded."""
        return self.live and begin >= self._since

    def choose(self, step: int, following: int, at: int) -> None:
        """Choose whether to record from `at` on: what happens then belongs to one of these two steps."""
        keep = self._keep
        wanted = keep.records(step) or keep.records(following) or autograd_profiler._is_profiler_enabled
        if wanted != self.live:
            self.live = wanted
            self._since = at
            for surface in self._surfaces:
                surface.pause(not wanted)
