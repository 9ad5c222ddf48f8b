"""Profilers of torch: ours, on a schedule, and when each began and ended to record."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from torch.profiler import ProfilerAction, profile, supported_activities
from torch.profiler.profiler import _KinetoProfile

RECORDING: Final = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def scheduled(schedule: Callable[[int], ProfilerAction], **options: Any) -> profile:
    """Make a profiler of the CPU and of the machine's devices, whatever their kind. `options`: of
    torch.profiler.profile."""
    return Scheduled(activities=supported_activities(), schedule=schedule, **options)


class Scheduled(profile):
    """Records the devices that torch knows when a window begins: `ddptrace run` makes the profiler before the program
    imports what registers its device.

    It does not warn at its second window. torch would warn, in the program's name, that the events of the first window
    are cleared, but these are saved by then.
    """

    def prepare_trace(self) -> None:
        self.profiler = None
        known = _KinetoProfile(activities=supported_activities())
        self.activities, self.use_device = known.activities, known.use_device
        super().prepare_trace()


def ends_now(own: profile) -> bool:
    """Whether the next step ends the window that is open."""
    last = own.current_action is ProfilerAction.RECORD_AND_SAVE
    return last or (own.current_action in RECORDING and own.schedule(own.step_num + 1) not in RECORDING)


class Apart:
    """A schedule in which no window begins at the step at which another one ends: it begins one step later.

    A step ends within torch's range `Optimizer.step#…`. At its end this range would write into the events of the window
    that has ended, which torch has freed, if a window is open: that ends the process.
    """

    def __init__(self, schedule: Callable[[int], ProfilerAction]) -> None:
        self._schedule = schedule
        self._step, self._action = -1, ProfilerAction.NONE  # the last one that was asked for

    def __call__(self, step: int) -> ProfilerAction:
        if step != self._step:
            action = self._schedule(step)
            is_next = step == self._step + 1 and self._action is ProfilerAction.RECORD_AND_SAVE
            self._step, self._action = step, ProfilerAction.WARMUP if is_next and action in RECORDING else action
        return self._action


class Spans:
    """Begin and end (0: open) of what torch's inner profilers record, of those that are still there.

    No callback removes a profiler that is gone, as that of a WeakKeyDictionary would: an exception that another thread
    raises into a callback is lost.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref[Any], int, int]] = {}

    def keep(self, profiler: Any, begin: int, end: int) -> None:
        self._by_id = {at: span for at, span in self._by_id.items() if span[0]() is not None}
        self._by_id[id(profiler)] = weakref.ref(profiler), begin, end

    def of(self, profiler: Any) -> tuple[int, int] | None:
        known, begin, end = self._by_id.get(id(profiler), (None, 0, 0))
        return (begin, end) if known is not None and known() is profiler else None
