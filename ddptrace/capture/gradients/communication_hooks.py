"""Communication hooks that the program registers: timed apart from the collectives they issue."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._C import Future  # what a Work's get_future gives; torch.futures.Future is a kind of it
from torch.nn.parallel import DistributedDataParallel

from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.gradients.ddp import DdpWatch
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.capture.surface import Patches, Surface, ThreadState
from ddptrace.record import Recorder
from ddptrace.schema import Kind

_now = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class HookCall:
    """One call of a hook that has begun."""

    seq: int
    name: str
    begin: int


class HookRecords:
    """Stamps the calls of hooks on the threads that they run on, whoever calls them."""

    def __init__(self, recorder: Recorder, collectives: Collectives, steps: StepFinder, thread: ThreadState) -> None:
        self._recorder = recorder
        self._collectives = collectives
        self._steps = steps
        self._thread = thread

    def begins(self, name: str) -> HookCall:
        """From here on, what this thread issues is the hook's."""
        seq = self._thread.hook = next(self._collectives.seqs)
        return HookCall(seq, name, _now())

    def ends(self) -> int:
        """End the call that this thread is in. Return when: now."""
        end = _now()
        self._thread.hook = 0
        return end

    def write(self, call: HookCall, end: int, reducer: int, bucket: int, nbytes: int, dtype: str) -> None:
        """Record the call. `reducer`: its number; `bucket`: the index; `nbytes` and `dtype`: of the bucket's
        gradients."""
        name, kind = self._recorder.intern(call.name), self._recorder.intern(dtype)
        self._recorder.event(
            Kind.HOOK, 0, name, call.begin, end, call.seq, nbytes, self._steps.backwards, bucket, 0, reducer, kind
        )

    def follow(self, call: HookCall, future: object, *, on_device: bool) -> None:
        """Stamp when the future that the hook returned completes. On a device it completes as soon as its work is
        queued, which means nothing."""
        if isinstance(future, Future) and not on_device:
            self._collectives.completions.follow(call.seq, future)


class HookWatch:
    """Wraps `register_comm_hook`. A hook cannot be taken back: after the trace its wrapper stays and only passes on. It
    knows this object through a weak reference."""

    def __init__(self, surface: Surface, records: HookRecords, ddp: DdpWatch) -> None:
        self._surface = surface
        self._records = records
        self._ddp = ddp

    def install(self, patches: Patches) -> None:
        patches.replace(DistributedDataParallel, "register_comm_hook", self._register)

    def _register(self, original: Callable[..., Any]) -> Callable[..., Any]:
        watch = weakref.ref(self)

        @functools.wraps(original)
        def register_comm_hook(ddp: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
            watched = _wrap(hook, watch, weakref.ref(ddp)) if hasattr(hook, "__qualname__") else hook
            original(ddp, state, watched)  # torch refuses by itself what has no name

        return register_comm_hook

    def called(self, ddp: DistributedDataParallel, hook: Callable[..., Any], state: object, bucket: Any) -> Any:
        """Run the user's hook between two stamps. What it raises or returns is the program's business."""
        call = self._records.begins(getattr(hook, "__name__", type(hook).__name__))
        try:
            future = hook(state, bucket)
        finally:
            end = self._records.ends()
        self._surface.call(self._write, ddp, bucket, call, end, future)
        return future

    def _write(self, ddp: DistributedDataParallel, bucket: Any, call: HookCall, end: int, future: object) -> None:
        buffer = bucket.buffer()
        nbytes, dtype = buffer.numel() * buffer.element_size(), str(buffer.dtype).removeprefix("torch.")
        self._records.write(call, end, self._ddp.number_of(ddp), bucket.index(), nbytes, dtype)
        self._records.follow(call, future, on_device=not buffer.is_cpu)


def _wrap(
    hook: Callable[..., Any],
    watch: weakref.ReferenceType[HookWatch],
    ddp: weakref.ReferenceType[DistributedDataParallel],
) -> Callable[..., Any]:
    @functools.wraps(hook, updated=())  # torch checks the hook's own signature, through __wrapped__
    def watched_hook(state: object, bucket: Any) -> Any:
        watcher, module = watch(), ddp()
        if watcher is None or module is None or not watcher._surface.live:
            return hook(state, bucket)
        return watcher.called(module, hook, state, bucket)

    return watched_hook
