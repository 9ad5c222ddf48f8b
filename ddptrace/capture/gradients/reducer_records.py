"""Records of gradient reducers, of stock DDP and of our own alike: who they are, their layouts, and when each gradient
became ready.

A hook on a parameter notes it, up to hundreds of times a step: it stores one number in a list that exists already.

by parameter    0: 1712    1: 1709    2: none    3: 1714
in order        1, 0, 3
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.parallel import DistributedDataParallel

from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.collectives.groups import Groups
from ddptrace.capture.steps.finder import Sampling
from ddptrace.record import Recorder
from ddptrace.schema import DELTA_MAX_NS, READY_PER_RECORD, Kind

_now = time.perf_counter_ns


class ReducerRecords:
    """Numbers the reducers of a process from 1: in records, 0 means no reducer."""

    def __init__(self, recorder: Recorder, groups: Groups) -> None:
        self.count = 0
        self._recorder = recorder
        self._groups = groups

    def number(self) -> int:
        """Return the number of a new reducer."""
        self.count += 1
        return self.count

    def reducer(self, number: int, content: dict[str, Any]) -> None:
        """`content`: kind, module, group, bucket_cap_nbytes and parameters, as `described` gives these."""
        group = self._groups.name(content["group"])
        self._write(Kind.REDUCER, {"reducer": number - 1} | content | {"group": group})

    def layout(self, number: int, layout: int, buckets: Sequence[Sequence[int]], *, from_backward: int) -> None:
        """`buckets`: parameter indices; `from_backward`: ordinal of the first backward that uses them."""
        content = {"reducer": number - 1, "layout": layout, "from_backward": from_backward, "buckets": buckets}
        self._write(Kind.LAYOUT, content)

    def ready(self, number: int, backward: int, ready: ReadyTimes) -> None:
        """The gradients of one backward, if there were any."""
        order, ats = ready.in_order()
        begin = 0
        while begin < len(order):
            end, base = begin + READY_PER_RECORD, ats[begin]
            run = ats[begin:end]
            while run[-1] - base > DELTA_MAX_NS:
                run.pop()
            end = begin + len(run)
            self._recorder.ready(number - 1, backward, base, list(map(base.__rsub__, run)), order[begin:end])
            begin = end

    def _write(self, kind: Kind, content: dict[str, Any]) -> None:
        self._recorder.describe(kind, json.dumps(content))


def described(named: Iterable[tuple[str, Tensor]]) -> list[dict[str, Any]]:
    """A reducer's parameters, in its own order."""
    return [
        {
            "name": name,
            "numel": tensor.numel(),
            "nbytes": tensor.numel() * tensor.element_size(),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        for name, tensor in named
    ]


class ReadyTimes:
    """`times`: by parameter, 0 while its gradient is not ready. Of a gradient that comes twice the second time
    counts."""

    __slots__ = ("_nothing", "times")

    def __init__(self, parameters: int) -> None:
        self._nothing = [0] * parameters
        self.times = [0] * parameters

    def clear(self) -> None:
        self.times[:] = self._nothing

    def in_order(self) -> tuple[list[int], list[int]]:
        """Return the parameters in the order in which their gradients came, and the times."""
        times = self.times
        order = sorted([index for index, at in enumerate(times) if at], key=times.__getitem__)
        return order, [times[index] for index in order]


AGREED_NS: Final = 50_000_000
"""Largest difference between the two hooks, as when the thread loses its core right after one of them."""


class GradientHooks:
    """When the gradients of one DDP module are ready: by hooks on parameters, and by notes of its reducer.

    The reducer notes each gradient in C++ at no cost, but its clock starts at an unknown instant. A hook reads the
    absolute time right before the reducer notes the same gradient, so two hooks are enough to align that clock. A hook
    on each of hundreds of parameters would be a call of Python between matrix products; and once placed, torch goes on
    looking for hooks at every gradient.

        reducer     2: 107,112           1: 121,599    0: 164,643           ns since some instant
        hooks       2: 71,000,107,110                  0: 71,000,164,641    so that instant is 71,000,000,000

    `ready`: times of this backward. `relies_on_notes`: not every parameter has a hook. It keeps nothing of the model
    alive: a model that is dropped during the trace must be freed.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], ready: ReadyTimes, hook: Callable[[int], Any]) -> None:
        """`hook(parameter)` makes a hook that notes into `ready`. No hook is placed before the first backward."""
        self.ready = ready
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self._witnesses = sorted({0, len(parameters) - 1}) if parameters else []
        self._hook = hook
        self._handles: dict[int, Any] = {}  # by parameter
        self._before: list[int] | None = None  # the notes as this backward began
        self.relies_on_notes = True

    def begins(self, ddp: DistributedDataParallel | None, *, is_alone: bool) -> None:
        """A recorded backward begins. `is_alone`: there is no other reducer, so that no hook is needed to say whose a
        bucket is."""
        if ddp is None:
            return
        noted = _notes(ddp)
        self.relies_on_notes &= is_alone and _notes_all(ddp) and len(noted) == len(self._parameters)
        self._place(self._witnesses if self.relies_on_notes else range(len(self._parameters)))
        self._before = noted if self.relies_on_notes else None

    def ends(self, ddp: DistributedDataParallel | None) -> None:
        """It ends. If the notes do not cover it, place all hooks for the next backwards."""
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

    def forget(self) -> None:
        """Leave the parameters as they were before, without weak references, for good: a program may swap the tensors
        of a module that it has taken out of DDP, and torch refuses one that anything refers to."""
        self.remove()
        self._parameters.clear()

    def _place(self, indices: Iterable[int]) -> None:
        for index in indices:
            parameter = None if index in self._handles else self._parameters[index]()
            if parameter is not None:
                self._handles[index] = parameter.register_post_accumulate_grad_hook(self._hook(index))


def ready_hook(
    ready: ReadyTimes, parameter: int, number: int, collectives: Collectives, sampling: Sampling
) -> Callable[[Any], None]:
    """Make the hook that runs after the gradient of a parameter is accumulated; what its reducer sends comes next.

    `number`: the reducer's. The hook holds the list of times and not the module: no cycle through C++.
    """
    times = ready.times

    def gradient_ready(_: Any, parameter: int = parameter) -> None:  # a default is read faster than a closure
        if not is_compiling() and sampling.live:  # a compiled backward runs the graph that Dynamo makes of its hooks
            times[parameter] = _now()
            collectives.reducer = number

    return gradient_ready


def _notes_all(ddp: DistributedDataParallel) -> bool:
    """Whether the reducer notes each gradient that comes, and no other. In `no_sync()` it notes nothing."""
    return ddp.require_backward_grad_sync and not ddp.find_unused_parameters and not ddp.static_graph


def _notes(ddp: DistributedDataParallel) -> list[int]:
    """Return the notes in ns, by parameter: each from the last synchronised backward that gave it a gradient."""
    return list(ddp.reducer.get_backward_stats())


def by_notes(seen: Sequence[tuple[int, int]], before: Sequence[int], noted: Sequence[int]) -> list[int] | None:
    """Return all times of a backward, 0 for a gradient that did not come; None if notes and hooks disagree.

    `seen`: some parameters, and when their hooks ran (0: not). `before`, `noted`: the notes before and after it.
    """
    if not all(at and noted[index] != before[index] for index, at in seen):
        return None
    since = [at - noted[index] for index, at in seen]
    if max(since) - min(since) > AGREED_NS:
        return None
    latest = max(since)  # a hook is early, by what passes until the note, and never late
    return [latest + now if now != was else 0 for was, now in zip(before, noted, strict=True)]
