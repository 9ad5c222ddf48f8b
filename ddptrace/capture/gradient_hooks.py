"""When the gradients of one DDP module are there: by hooks on its parameters, and by what its reducer notes itself.

The reducer notes it in C++ and for nothing, but not since when. A hook knows what o'clock that is: it runs right before
the reducer notes the same gradient. So two are enough, where each of hundreds would be a call of Python amid matrix
products. Nor can they be taken off again entirely: torch goes on asking for them at every gradient.

    reducer     2: 107,112           1: 121,599    0: 164,643           ns since some instant
    hooks       2: 71,000,107,110                  0: 71,000,164,641    so that instant is 71,000,000,000
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from ddptrace.capture.ready_times import ReadyTimes

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
