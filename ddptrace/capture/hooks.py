"""Communication hooks that the program registers: timed apart from the collectives they issue."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddptrace.capture.collectives import Collectives
from ddptrace.capture.ddp import DdpWatch
from ddptrace.capture.steps import StepFinder
from ddptrace.capture.surface import Patches, Surface, ThreadState
from ddptrace.record import Recorder
from ddptrace.schema import Kind

_now = time.perf_counter_ns


class HookWatch:
    """Wraps `register_comm_hook`. A hook cannot be taken back: after the trace its wrapper stays and only passes on. It
    knows this object through a weak reference."""

    def __init__(
        self, recorder: Recorder, surface: Surface, collectives: Collectives, ddp: DdpWatch, steps: StepFinder,
        thread: ThreadState,
    ) -> None:  # fmt: skip
        self._recorder = recorder
        self._surface = surface
        self._collectives = collectives
        self._ddp = ddp
        self._steps = steps
        self._thread = thread

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
        seq = next(self._collectives.seqs)
        self._thread.hook = seq
        begin = _now()
        try:
            future = hook(state, bucket)
        finally:
            end = _now()
            self._thread.hook = 0
        try:
            self._write(ddp, hook, bucket, seq, begin, end)
            if isinstance(future, torch.futures.Future):
                future.add_done_callback(self._collectives.done(seq))
        except Exception as error:  # training must not see it
            self._surface.failed(error)
        return future

    def _write(
        self, ddp: DistributedDataParallel, hook: Callable[..., Any], bucket: Any, seq: int, begin: int, end: int
    ) -> None:
        buffer = bucket.buffer()
        name = self._recorder.intern(getattr(hook, "__name__", type(hook).__name__))
        dtype = self._recorder.intern(str(buffer.dtype).removeprefix("torch."))
        nbytes = buffer.numel() * buffer.element_size()
        number = self._ddp.number_of(ddp)
        self._recorder.event(
            Kind.HOOK, 0, name, begin, end, seq, nbytes, self._steps.backwards, bucket.index(), 0, number, dtype
        )


def _wrap(
    hook: Callable[..., Any],
    watch: weakref.ReferenceType[HookWatch],
    ddp: weakref.ReferenceType[DistributedDataParallel],
) -> Callable[..., Any]:
    @functools.wraps(hook, updated=())  # torch checks the hook's own signature, through __wrapped__
    def watched_hook(state: object, bucket: Any) -> Any:
        watcher, module = watch(), ddp()
        if watcher is None or module is None or not watcher._surface.on:
            return hook(state, bucket)
        return watcher.called(module, hook, state, bucket)

    return watched_hook
