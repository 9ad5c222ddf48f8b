"""When each gradient of a reducer was there, in one backward.

A hook on a parameter notes it, up to hundreds of times a step: it stores one number, in a place that is there already.

by parameter    0: 1712    1: 1709    2: none    3: 1714
in order        1, 0, 3
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.steps.sampling import Sampling

_now = time.perf_counter_ns


class ReadyTimes:
    """`times`: by parameter, 0 where its gradient was not there yet. One that comes twice counts the second time."""

    __slots__ = ("_nothing", "times")

    def __init__(self, parameters: int) -> None:
        self._nothing = [0] * parameters
        self.times = [0] * parameters

    def clear(self) -> None:
        self.times[:] = self._nothing

    def in_order(self) -> tuple[list[int], list[int]]:
        """Parameters in the order in which their gradients came, and when."""
        times = self.times
        order = sorted([index for index, at in enumerate(times) if at], key=times.__getitem__)
        return order, [times[index] for index in order]


AGREED_NS: Final = 50_000_000
"""So far may one hook be off the other, as where the thread loses its core right after it."""


class GradientHooks:
    """`ready`: times of this backward; `relies_on_notes`: not every parameter has a hook. It holds nothing of the
    model: one dropped during the trace must be freed."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], ready: ReadyTimes, hook: Callable[[int], Any]) -> None:
        """`hook(parameter)` makes the hook of one, which notes into `ready`. None is placed before a backward."""
        self.ready = ready
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self._witnesses = sorted({0, len(parameters) - 1}) if parameters else []
        self._hook = hook
        self._handles: dict[int, Any] = {}  # by parameter
        self._before: list[int] | None = None  # the notes as this backward began
        self.relies_on_notes = True

    def begins(self, ddp: DistributedDataParallel | None, *, is_alone: bool) -> None:
        """A backward that is recorded. `is_alone`: no other reducer sends anything, so that no hook has to tell whose a
        bucket is."""
        if ddp is None:
            return
        noted = _notes(ddp)
        self.relies_on_notes &= is_alone and _notes_all(ddp) and len(noted) == len(self._parameters)
        self._place(self._witnesses if self.relies_on_notes else range(len(self._parameters)))
        self._before = noted if self.relies_on_notes else None

    def ends(self, ddp: DistributedDataParallel | None) -> None:
        """That backward. Where the notes say nothing of it, all hooks are placed for the next ones."""
        before, self._before = self._before, None
        if before is None or ddp is None:
            return
        noted = _notes(ddp)
        if any(self.ready.times) or noted != before:
            times = by_notes([(index, self.ready.times[index]) for index in self._witnesses], before, noted)
            self.relies_on_notes = times is not None
            self.ready.times[:] = times or self.ready.times

    def remove(self) -> None:
        """Take the hooks off."""
        for index, handle in self._handles.items():
            handle.remove()
            parameter = self._parameters[index]()
            if parameter is not None and not parameter._post_accumulate_grad_hooks:
                parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment] # as it was before
        self._handles.clear()

    def _place(self, indices: Iterable[int]) -> None:
        for index in indices:
            parameter = None if index in self._handles else self._parameters[index]()
            if parameter is not None:
                self._handles[index] = parameter.register_post_accumulate_grad_hook(self._hook(index))


def ready_hook(
    ready: ReadyTimes, parameter: int, number: int, collectives: Collectives, sampling: Sampling
) -> Callable[[Any], None]:
    """A hook for after the gradient of a parameter was accumulated: what its reducer, `number`, sends comes next. It
    holds the list of times, not the module: no cycle through C++."""
    times = ready.times

    def gradient_ready(_: Any, parameter: int = parameter) -> None:  # a default is read faster than a closure
        if sampling.live:
            times[parameter] = _now()
            collectives.reducer = number

    return gradient_ready


def _notes_all(ddp: DistributedDataParallel) -> bool:
    """Whether it notes every gradient, and none that did not come. Where it is not to send, it notes nothing."""
    return ddp.require_backward_grad_sync and not ddp.find_unused_parameters and not ddp.static_graph


def _notes(ddp: DistributedDataParallel) -> list[int]:
    """In ns by parameter, each as of the last backward that gave it a gradient and synchronised it."""
    return list(ddp.reducer.get_backward_stats())


def by_notes(seen: Sequence[tuple[int, int]], before: Sequence[int], noted: Sequence[int]) -> list[int] | None:
    """All times of a backward, 0 where a gradient did not come. `seen`: some parameters, and when their hooks ran, 0
    where they did not; `before`, `noted`: the notes before and after that backward. None where those do not fit."""
    if not all(at and noted[index] != before[index] for index, at in seen):
        return None
    since = [at - noted[index] for index, at in seen]
    if max(since) - min(since) > AGREED_NS:
        return None
    latest = max(since)  # a hook is early, by what passes until the note, and never late
    return [latest + now if now != was else 0 for was, now in zip(before, noted, strict=True)]
